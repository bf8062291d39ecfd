#include "device.h"

#include <string.h>

#include "expertd/kernels/kernel_select.h"

enum { STAGING_BYTES = 1 << 20, GROUPS_MAX = 1 << 12 };

static FALLIBLE make(const char *text, struct case_device *d) {
    struct expertd_devices_request request;
    TRY(expertd_devices_parse(text, &request));
    TRY(expertd_devices_open(&request, &d->devices));
    TRY(arena_init(&d->staging, STAGING_BYTES));
    EXPERTD_DEVICES_CALL(d->devices, 0, pin, d->staging.base, d->staging.bytes);
    d->pinned = true;
    return expertd_device_operations_create(d->devices, 0, GROUPS_MAX, &d->operations);
}

FALLIBLE case_device_open(const char *text, struct case_device *out, bool *has_twin) {
    *out = (struct case_device){0};
    err_t e = make(text, out);
    if (err_is(e)) {
        case_device_close(out);
        return e;
    }
    *has_twin = !err_is(expertd_kernel_select_arithmetic(out->devices->facts.arithmetic));
    return OK;
}

void case_device_close(struct case_device *d) {
    if (d->devices) {
        case_device_drop(d);
        expertd_device_operations_destroy(d->operations);
        if (d->pinned) {
            d->devices->table->unpin(d->devices->all[0], d->staging.base);
        }
        arena_deinit(&d->staging);
        expertd_devices_close(d->devices);
    }
    *d = (struct case_device){0};
}

FALLIBLE case_device_copy(struct case_device *d, const void *host, size_t bytes, void **out) {
    *out = NULL;
    if (!host) {
        return OK;
    }
    if (d->count == CASE_PIECES_MAX) {
        FAIL(EXPERTD_ERR_INTERNAL, "a case has more than %d operands", CASE_PIECES_MAX);
    }
    EXPERTD_DEVICES_CALL(d->devices, 0, reserve, bytes ? bytes : 1, out);
    d->pieces[d->count++] = *out;
    for (size_t at = 0; at < bytes; at += STAGING_BYTES) {
        size_t count = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
        memcpy(d->staging.base, (const char *)host + at, count);
        EXPERTD_DEVICES_CALL(d->devices, 0, copy, EXPERTD_DEVICE_UPLOAD, (char *)*out + at, d->staging.base, count);
        TRY(expertd_devices_wait(d->devices, 0));
    }
    return OK;
}

FALLIBLE case_back(struct case_device *d, const void *there, size_t bytes, void *host) {
    for (size_t at = 0; at < bytes; at += STAGING_BYTES) {
        size_t count = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
        EXPERTD_DEVICES_CALL(d->devices, 0, copy, EXPERTD_DEVICE_DOWNLOAD, d->staging.base, (const char *)there + at, count);
        TRY(expertd_devices_wait(d->devices, 0));
        memcpy((char *)host + at, d->staging.base, count);
    }
    return OK;
}

void case_device_drop(struct case_device *d) {
    struct expertd_device_error error;
    (void)d->devices->table->wait(d->devices->all[0], &error); // the failure was reported already
    while (d->count > 0) {
        d->devices->table->release(d->devices->all[0], d->pieces[--d->count]);
    }
}
