// expertd_make_group_metadata.
#include <stdlib.h>

#include "case.h"
#include "device.h"
#include "expertd/kernels/group_metadata.h"

enum { TILES_MAX = 1 << 26 }; // limit for a valid case

// A required attribute that is not negative.
static FALLIBLE size_attribute(const struct kernel_case *c, const char *key, size_t *out) {
    int64_t value;
    TRY(case_integer(c, key, -1, &value));
    if (value < 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, key, "%s is \"%s\": it is an integer from 0 on", key, case_text(c, key));
    }
    *out = (size_t)value;
    return OK;
}

static FALLIBLE read_args(const struct kernel_case *c, struct expertd_group_metadata_args *args) {
    const struct expertd_tensor_view *sizes = case_tensor(c, "group_sizes");
    if (!sizes || sizes->dtype != EXPERTD_DTYPE_I32 || sizes->rank != 1) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "group_sizes", "group_sizes are missing, or not I32 [G]");
    }
    *args = (struct expertd_group_metadata_args){.group_sizes = sizes->data, .num_groups = sizes->shape[0]};
    TRY(size_attribute(c, "m", &args->m));
    TRY(size_attribute(c, "tm", &args->tm));
    TRY(size_attribute(c, "start_group", &args->start_group));
    TRY(size_attribute(c, "num_nonzero_groups", &args->num_local_groups));
    return case_flag(c, "visit_empty_groups", &args->visit_empty_groups);
}

static void poison(const struct expertd_group_metadata *metadata, size_t num_groups, size_t capacity) {
    memset(metadata->group_offsets, 0x7f, (num_groups + 1) * sizeof(int32_t));
    memset(metadata->group_ids, 0x7f, capacity * sizeof(int32_t));
    memset(metadata->m_tile_ids, 0x7f, capacity * sizeof(int32_t));
}

// Compares the first num_tiles entries; the rest are unspecified.
static FALLIBLE compare_visits(const struct kernel_case *c, const char *name, const int32_t *got, size_t num_tiles,
                               size_t capacity) {
    const struct expertd_tensor_view *expected;
    TRY(case_expected(c, name, &(struct case_answer){EXPERTD_DTYPE_I32, 1, {capacity}}, &expected));
    struct expertd_tensor_view visited = {.dtype = EXPERTD_DTYPE_I32, .rank = 1, .shape = {num_tiles}, .data = expected->data};
    return case_compare(c, name, &visited, got);
}

static FALLIBLE compare(const struct kernel_case *c, const struct expertd_group_metadata_args *args,
                        const struct expertd_group_metadata *got) {
    const struct expertd_tensor_view *offsets, *tiles;
    size_t capacity = expertd_group_metadata_capacity(args->m, args->tm, args->num_groups);
    int32_t num_tiles = (int32_t)got->num_tiles;
    TRY(case_expected(c, "group_offsets", &(struct case_answer){EXPERTD_DTYPE_I32, 1, {args->num_groups + 1}}, &offsets));
    TRY(case_compare(c, "group_offsets", offsets, got->group_offsets));
    TRY(case_expected(c, "num_tiles", &(struct case_answer){EXPERTD_DTYPE_I32, 1, {1}}, &tiles));
    TRY(case_compare(c, "num_tiles", tiles, &num_tiles));
    TRY(compare_visits(c, "group_ids", got->group_ids, got->num_tiles, capacity));
    return compare_visits(c, "m_tile_ids", got->m_tile_ids, got->num_tiles, capacity);
}

// On the device, from sizes that the host has checked.
static FALLIBLE make_there(struct case_device *d, const struct expertd_group_metadata_args *args,
                           struct expertd_group_metadata *out) {
    size_t entries = expertd_group_metadata_capacity(args->m, args->tm, args->num_groups) * sizeof(int32_t);
    size_t offsets = (args->num_groups + 1) * sizeof(int32_t);
    int32_t count = -1;
    void *sizes, *there[4];
    TRY(case_device_copy(d, args->group_sizes, args->num_groups * sizeof(int32_t), &sizes));
    TRY(case_device_copy(d, out->group_offsets, offsets, &there[0]));
    TRY(case_device_copy(d, out->group_ids, entries, &there[1]));
    TRY(case_device_copy(d, out->m_tile_ids, entries, &there[2]));
    TRY(case_device_copy(d, &count, sizeof count, &there[3]));
    struct expertd_device_group_metadata metadata = {.sizes = sizes,
                                                     .groups = (uint32_t)args->num_groups,
                                                     .rows = (uint32_t)args->m,
                                                     .tile_rows = args->tm < INT32_MAX ? (uint32_t)args->tm
                                                                                       : INT32_MAX, // m is at most INT32_MAX
                                                     .first_group = (uint32_t)args->start_group,
                                                     .local_groups = (uint32_t)args->num_local_groups,
                                                     .visit_empty = args->visit_empty_groups,
                                                     .offsets = there[0],
                                                     .ids = there[1],
                                                     .tiles = there[2],
                                                     .tile_count = there[3]};
    EXPERTD_DEVICES_CALL(d->devices, 0, group_metadata, &metadata);
    TRY(case_back(d, there[0], offsets, out->group_offsets));
    TRY(case_back(d, there[1], entries, out->group_ids));
    TRY(case_back(d, there[2], entries, out->m_tile_ids));
    TRY(case_back(d, there[3], sizeof count, &count));
    out->num_tiles = (size_t)count;
    return OK;
}

static FALLIBLE make_and_compare(const struct kernel_case *c, const struct expertd_group_metadata_args *args,
                                 struct expertd_group_metadata *out) {
    poison(out, args->num_groups, expertd_group_metadata_capacity(args->m, args->tm, args->num_groups));
    TRY(expertd_make_group_metadata(args, out));
    if (c->device && !c->expected_error) {
        poison(out, args->num_groups, expertd_group_metadata_capacity(args->m, args->tm, args->num_groups));
        out->num_tiles = SIZE_MAX;
        err_t e = make_there(c->device, args, out);
        case_device_drop(c->device);
        TRY(e);
    }
    return c->expected_error ? OK : compare(c, args, out);
}

FALLIBLE run_group_metadata(const struct kernel_case *c) {
    struct expertd_group_metadata_args args;
    TRY(read_args(c, &args));
    size_t capacity = args.tm ? expertd_group_metadata_capacity(args.m, args.tm, args.num_groups) : 0;
    if (args.m <= INT32_MAX && capacity > TILES_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "m and tm make %zu tiles: a case has at most %d", capacity, TILES_MAX);
    }
    capacity = args.m <= INT32_MAX ? capacity : 0; // refused before anything is written
    struct expertd_group_metadata metadata = {
        .group_offsets = malloc((args.num_groups + 1) * sizeof(int32_t)),
        .group_ids = malloc((capacity + 1) * sizeof(int32_t)),
        .m_tile_ids = malloc((capacity + 1) * sizeof(int32_t)),
    };
    err_t e = OK;
    if (!metadata.group_offsets || !metadata.group_ids || !metadata.m_tile_ids) {
        (void)err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %zu tiles", capacity);
        e = (err_t){EXPERTD_ERR_NOMEM}; // a literal, so that static analysis sees the failure
    }
    for (int round = 0; round < 2 && !err_is(e); round++) {
        e = args.tm && args.m <= INT32_MAX ? make_and_compare(c, &args, &metadata) : expertd_make_group_metadata(&args, &metadata);
    }
    free(metadata.group_offsets), free(metadata.group_ids), free(metadata.m_tile_ids);
    return e;
}
