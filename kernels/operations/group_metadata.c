#include "expertd/kernels/group_metadata.h"

#include "base/err.h"

static size_t tiles_of(size_t m, size_t tm) {
    return m / tm + (m % tm != 0);
}

size_t expertd_group_metadata_capacity(size_t m, size_t tm, size_t num_groups) {
    size_t entries = (tm ? tiles_of(m, tm) : 0) + num_groups;
    return entries ? entries - 1 : 0;
}

// Sums in 64 bits, so that no sizes can wrap to a sum that fits.
static FALLIBLE fill_offsets(const struct expertd_group_metadata_args *args, int32_t *offsets) {
    int64_t sum = 0;
    offsets[0] = 0;
    for (size_t g = 0; g < args->num_groups; g++) {
        int32_t size = args->group_sizes[g];
        if (size < 0) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "group_sizes", "group_sizes[%zu] is %d: a group cannot have fewer than 0 rows", g,
                       size);
        }
        sum += size;
        if ((uint64_t)sum > args->m) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "group_sizes", "group_sizes add up to %lld or more, but there are %zu rows (m)",
                       (long long)sum, args->m);
        }
        offsets[g + 1] = (int32_t)sum;
    }
    return OK;
}

static FALLIBLE check_args(const struct expertd_group_metadata_args *args) {
    if (args->m > INT32_MAX) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "m", "m is %zu: at most %d rows can be numbered", args->m, INT32_MAX);
    }
    if (args->num_groups > INT32_MAX) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "num_groups", "num_groups is %zu: at most %d can be numbered", args->num_groups, INT32_MAX);
    }
    if (args->tm == 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "tm", "tm is 0: a tile has at least one row");
    }
    if (args->start_group > args->num_groups) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "start_group", "start_group is %zu, but there are %zu groups", args->start_group,
                   args->num_groups);
    }
    if (args->num_local_groups > args->num_groups - args->start_group) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "num_nonzero_groups", "num_nonzero_groups is %zu from group %zu on, but there are %zu",
                   args->num_local_groups, args->start_group, args->num_groups);
    }
    return OK;
}

struct visits {
    struct expertd_group_metadata *out;
    size_t count;
};

static void visit(struct visits *visits, size_t group, size_t tile) {
    visits->out->group_ids[visits->count] = (int32_t)group;
    visits->out->m_tile_ids[visits->count] = (int32_t)tile;
    visits->count++;
}

static FALLIBLE check_array(const char *name, const int32_t *array, size_t count) {
    if (count > 0 && (!array || (uintptr_t)array % sizeof *array != 0)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, name, "%s is at %p: its %zu numbers must be aligned to %zu bytes", name,
                   (const void *)array, count, sizeof *array);
    }
    return OK;
}

static FALLIBLE check_arrays(const struct expertd_group_metadata_args *args, const struct expertd_group_metadata *out) {
    size_t capacity = expertd_group_metadata_capacity(args->m, args->tm, args->num_groups);
    TRY(check_array("group_sizes", args->group_sizes, args->num_groups));
    TRY(check_array("group_offsets", out->group_offsets, args->num_groups + 1));
    TRY(check_array("group_ids", out->group_ids, capacity));
    return check_array("m_tile_ids", out->m_tile_ids, capacity);
}

FALLIBLE expertd_make_group_metadata(const struct expertd_group_metadata_args *args, struct expertd_group_metadata *out) {
    TRY(check_args(args));
    TRY(check_arrays(args, out));
    TRY(fill_offsets(args, out->group_offsets));
    size_t m_tiles = tiles_of(args->m, args->tm);
    struct visits visits = {.out = out};
    for (size_t g = args->start_group; m_tiles && g < args->start_group + args->num_local_groups; g++) {
        size_t begin = (size_t)out->group_offsets[g], end = (size_t)out->group_offsets[g + 1];
        size_t first = begin / args->tm;
        if (begin == end && args->visit_empty_groups) {
            visit(&visits, g, first < m_tiles ? first : m_tiles - 1); // an empty group that begins at m has no tile of its own
        }
        for (size_t tile = first; tile < tiles_of(end, args->tm) && begin < end; tile++) {
            visit(&visits, g, tile);
        }
    }
    out->num_tiles = visits.count;
    return OK;
}
