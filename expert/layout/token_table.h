// The table of a hash router: the experts of each token id (DeepSeek-V4's first layers). Constant after load; any thread.
#ifndef EXPERTD_EXPERT_LAYOUT_TOKEN_TABLE_H
#define EXPERTD_EXPERT_LAYOUT_TOKEN_TABLE_H

#include <stdint.h>

#include "base/err.h"
#include "expert/architecture/layer_params.h"
#include "expertd/base/dtype.h"
#include "expertd/base/tensor.h"

struct digest;

// The table in a file, row-major [tokens, K].
struct token_table_source {
    const void *data;         // may be misaligned; NULL: the layer has no table
    enum expertd_dtype dtype; // I32 or I64
    const char *name;         // of the tensor, for messages
};

// Copies the table to `out` [params->num_token_ids, K] and adds it to the digest. EXPERTD_ERR_CHECKPOINT names the first entry that
// is not the id of an expert, and its token.
FALLIBLE token_table_read(const struct token_table_source *source, const struct layer_params *params, int32_t *out,
                          struct digest *digest);

// Element i of an I32 or I64 view.
int64_t token_id_at(const struct expertd_tensor_view *ids, uint64_t i);

#endif
