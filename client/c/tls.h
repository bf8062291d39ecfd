// How a client uses TLS: the files and the name that it checks the daemon with. Unix sockets are always plain.
#ifndef EXPERTD_CLIENT_C_TLS_H
#define EXPERTD_CLIENT_C_TLS_H

#include <stdbool.h>

struct client_tls {          // strings are borrowed while a client is created
    bool on;                 // false: plain, and the rest is ignored
    const char *ca;          // PEM file of the CA of the daemon's certificate; NULL: the system's CAs
    const char *cert, *key;  // PEM files of the client's own certificate and key, which a mutual daemon demands; NULL: none
    const char *server_name; // that the daemon's certificate must have; NULL: the host of the address
};

#endif
