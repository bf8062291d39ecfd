// Which row tiles a grouped matmul visits, and for which group: expertd_make_group_metadata of the Pallas TPU grouped matmul
// (megablox).
#ifndef EXPERTD_KERNELS_GROUP_METADATA_H
#define EXPERTD_KERNELS_GROUP_METADATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expertd_group_metadata_args {
    const int32_t *group_sizes; // [num_groups], rows per group, groups one after another
    size_t num_groups;          // G, of all shards
    size_t m;                   // rows of lhs, >= the sum of group_sizes
    size_t tm;                  // rows of a tile, >= 1
    size_t start_group;         // the first group held here
    size_t num_local_groups;    // groups held here: num_actual_groups, num_nonzero_groups upstream
    bool visit_empty_groups;    // an empty group visits one tile (tgmm zeroes its output there)
};

struct expertd_group_metadata {
    int32_t *group_offsets; // [num_groups + 1]; offsets[num_groups] = the sum of the sizes
    int32_t *group_ids;     // [expertd_group_metadata_capacity]; entries past num_tiles are never executed
    int32_t *m_tile_ids;    // [expertd_group_metadata_capacity]
    size_t num_tiles;
};

// m_tiles + num_groups - 1 (0 where both are 0; a tm of 0 has no tiles): entries of group_ids and m_tile_ids.
size_t expertd_group_metadata_capacity(size_t m, size_t tm, size_t num_groups);

// Fills `out`, whose three arrays the caller owns at the sizes above. Counts tiles with integers.
// EXPERTD_ERR_INVALID names the argument: an array that is missing, a negative size, sum > m, start_group + num_local_groups >
// num_groups, tm = 0.
EXPERTD_FALLIBLE expertd_make_group_metadata(const struct expertd_group_metadata_args *args, struct expertd_group_metadata *out);

#ifdef __cplusplus
}
#endif

#endif
