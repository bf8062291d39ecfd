// One device and its memory for the programs of tests/gpu. Any failure ends the program.
#ifndef EXPERTD_TESTS_GPU_PIECES_H
#define EXPERTD_TESTS_GPU_PIECES_H

#include "expertd/kernels/devices.h"

enum { PIECES_MAX = 16 };

struct pieces {
    const char *program; // for messages
    struct expertd_devices *devices;
    const struct expertd_device_table *table;
    struct expertd_device *device;
    uint64_t random; // state of pieces_random; not 0
    void *all[PIECES_MAX];
    int count;
};

// Opens the device of "--device X", by default the first GPU. Ends the program with 69 if it is missing, 64 for other arguments.
void pieces_open(struct pieces *p, const char *program, int argc, char **argv);
void pieces_close(struct pieces *p);

uint32_t pieces_random(struct pieces *p);
void pieces_must(const struct pieces *p, enum expertd_device_code code, const struct expertd_device_error *error);
void *pieces_upload(struct pieces *p, const void *host, size_t bytes); // returns a copy on the device, valid until pieces_drop
void pieces_download(struct pieces *p, const void *memory, size_t bytes, void *host);
void pieces_drop(struct pieces *p);

#endif
