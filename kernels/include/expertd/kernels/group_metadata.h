// Which tile of rows a grouped matmul visits for which group: make_group_metadata of the Pallas TPU grouped matmul (megablox).
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
    const int32_t *group_sizes; // [num_groups] rows of each group; the groups' rows follow each other
    size_t num_groups;          // of all shards
    size_t m;                   // rows of lhs, >= the sum of group_sizes
    size_t tm;                  // rows of a tile, >= 1
    size_t start_group;         // the first local group
    size_t num_local_groups;    // local groups (megablox: num_nonzero_groups)
    bool visit_empty_groups;    // an empty group visits one tile, where tgmm sets its output to 0
};

struct expertd_group_metadata {
    int32_t *group_offsets; // [num_groups + 1] first row of each group; the last entry is the sum of the sizes
    int32_t *group_ids;     // [expertd_group_metadata_capacity] group of each visit; entries from num_tiles on are not written
    int32_t *m_tile_ids;    // [expertd_group_metadata_capacity] tile of each visit
    size_t num_tiles;       // visits
};

// Entries of group_ids and m_tile_ids that the caller must provide: ceil(m / tm) + num_groups - 1, at least 0. A tm of 0 counts as
// no tiles.
size_t expertd_group_metadata_capacity(size_t m, size_t tm, size_t num_groups);

// Fills the three arrays, which the caller provides, and num_tiles. EXPERTD_ERR_INVALID names the argument: an array is missing, a
// size is negative, the sum exceeds m, m or num_groups exceeds INT32_MAX, start_group + num_local_groups > num_groups, or tm is 0.
EXPERTD_FALLIBLE expertd_make_group_metadata(const struct expertd_group_metadata_args *args, struct expertd_group_metadata *out);

#ifdef __cplusplus
}
#endif

#endif
