#include "expert/layout/token_table.h"

#include <inttypes.h>
#include <string.h>

#include "expert/checkpoint/digest.h"

static int64_t element(const void *data, enum expertd_dtype dtype, uint64_t i) {
    int64_t wide;
    int32_t narrow;
    if (dtype == EXPERTD_DTYPE_I64) {
        memcpy(&wide, (const char *)data + i * sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const char *)data + i * sizeof narrow, sizeof narrow);
    return narrow;
}

int64_t token_id_at(const struct expertd_tensor_view *ids, uint64_t i) {
    return element(ids->data, ids->dtype, i);
}

FALLIBLE token_table_read(const struct token_table_source *source, const struct layer_params *params, int32_t *out,
                          struct digest *digest) {
    uint64_t columns = params->routing.top_k, count = params->num_token_ids * columns;
    for (uint64_t i = 0; i < count; i++) {
        int64_t expert = element(source->data, source->dtype, i);
        if (expert < 0 || expert >= params->num_experts) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "tensor %s assigns token %" PRIu64 " to expert %" PRId64
                 ", but there are experts 0 to %u: the file or config.json is wrong",
                 source->name, i / columns, expert, params->num_experts - 1);
        }
        out[i] = (int32_t)expert;
        digest_u32(digest, (uint32_t)expert);
    }
    return OK;
}
