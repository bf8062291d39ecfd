// A hash router's table: for each token id the experts that it goes to, whatever its hidden row is (DeepSeek-V4's first layers).
// Constant after load; any thread.
#ifndef EXPERTD_EXPERT_MODEL_TOKEN_TABLE_H
#define EXPERTD_EXPERT_MODEL_TOKEN_TABLE_H

#include <stdint.h>

#include "expert/architecture/architecture.h"
#include "expert/checkpoint/digest.h"
#include "expertd/base/dtype.h"
#include "expertd/base/tensor.h"

// As it lies in a file, row-major [tokens, K].
struct token_table_source {
    const void *data;         // may be misaligned; NULL: there is none
    enum expertd_dtype dtype; // I32 or I64
    const char *name;         // of the tensor, for errors
};

// Copies params->num_token_ids rows to `out` [num_token_ids, K] and adds them to the digest. EXPERTD_ERR_CHECKPOINT names the first
// id that is no expert, and its token.
FALLIBLE token_table_read(const struct token_table_source *source, const struct layer_params *params, int32_t *out,
                          struct digest *digest);

// Element i of an I32 or I64 view as a 64-bit number.
int64_t token_id_at(const struct expertd_tensor_view *ids, uint64_t i);

#endif
