#include "tests/gpu/pieces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { PAGE = 4096 };

static void end(const struct pieces *p, int status, const char *why) {
    fprintf(stderr, "%s: %s\n", p->program, why);
    exit(status);
}

void pieces_open(struct pieces *p, const char *program, int argc, char **argv) {
    struct expertd_devices_request request;
    *p = (struct pieces){.program = program, .random = 88172645463325252u};
    if (argc != 1 && (argc != 3 || strcmp(argv[1], "--device") != 0)) {
        end(p, 64, "usage: --device cuda|cuda:N|sim");
    }
    if (err_is(expertd_devices_parse(argc == 3 ? argv[2] : "cuda:0", &request)) ||
        err_is(expertd_devices_open(&request, &p->devices))) {
        end(p, 69, expertd_err_message());
    }
    p->table = p->devices->table;
    p->device = p->devices->all[0];
}

void pieces_close(struct pieces *p) {
    pieces_drop(p);
    expertd_devices_close(p->devices);
}

uint32_t pieces_random(struct pieces *p) {
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    p->random ^= p->random << 17;
    return (uint32_t)(p->random >> 16);
}

void pieces_must(const struct pieces *p, enum expertd_device_code code, const struct expertd_device_error *error) {
    if (err_is(expertd_devices_check(p->devices, 0, code, error))) {
        end(p, 1, expertd_err_message());
    }
}

// Copies through temporary pinned pages on the host.
static void copy(const struct pieces *p, enum expertd_device_copy_kind kind, void *to, const void *from, size_t bytes) {
    struct expertd_device_error error;
    void *pages = NULL;
    size_t rounded = (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
    if (posix_memalign(&pages, PAGE, rounded) != 0) {
        end(p, 1, "no memory");
    }
    bool up = kind == EXPERTD_DEVICE_UPLOAD;
    if (up && bytes > 0) {
        memcpy(pages, from, bytes);
    }
    pieces_must(p, p->table->pin(p->device, pages, rounded, &error), &error);
    pieces_must(p, p->table->copy(p->device, kind, up ? to : pages, up ? pages : from, bytes, &error), &error);
    pieces_must(p, p->table->wait(p->device, &error), &error);
    p->table->unpin(p->device, pages);
    if (!up && bytes > 0) {
        memcpy(to, pages, bytes);
    }
    free(pages);
}

void *pieces_upload(struct pieces *p, const void *host, size_t bytes) {
    struct expertd_device_error error;
    void *memory;
    if (p->count == PIECES_MAX) {
        end(p, 1, "too many allocations of device memory");
    }
    pieces_must(p, p->table->reserve(p->device, bytes + 1, &memory, &error), &error);
    p->all[p->count++] = memory;
    copy(p, EXPERTD_DEVICE_UPLOAD, memory, host, bytes);
    return memory;
}

void pieces_download(struct pieces *p, const void *memory, size_t bytes, void *host) {
    copy(p, EXPERTD_DEVICE_DOWNLOAD, host, memory, bytes);
}

void pieces_drop(struct pieces *p) {
    while (p->count > 0) {
        p->table->release(p->device, p->all[--p->count]);
    }
}
