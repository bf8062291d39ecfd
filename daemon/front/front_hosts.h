// The addresses of --shard-hosts: lists them in the membership, and asks the name service for the addresses of names every few
// seconds, on a thread of its own. Private to daemon/front/.
#ifndef EXPERTD_DAEMON_FRONT_FRONT_HOSTS_H
#define EXPERTD_DAEMON_FRONT_FRONT_HOSTS_H

#include "daemon/front/front_state.h"

FALLIBLE front_hosts_create(struct front *front); // EXPERTD_ERR_NOMEM
void front_hosts_destroy(struct front *front);    // legal after a failed front_hosts_create

// Lists the addresses that are no names, once. With the mutex.
void front_hosts_list(struct front *front);
FALLIBLE front_hosts_start(struct front *front); // starts the thread if there are names. EXPERTD_ERR_UNAVAILABLE: no thread
void front_hosts_stop(struct front *front);      // without the mutex. Joins the thread

#endif
