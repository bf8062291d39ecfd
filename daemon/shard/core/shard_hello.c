#include "daemon/shard/core/shard_hello.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { DIGEST_TEXT_MAX = 2 * SHARD_DIGEST_LENGTH + 1 };

static const char *digest_text(const uint8_t digest[SHARD_DIGEST_LENGTH], char text[DIGEST_TEXT_MAX]) {
    for (size_t i = 0; i < SHARD_DIGEST_LENGTH; i++) {
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    }
    return text;
}

FALLIBLE shard_hello_compare(const struct shard_identity *front, const struct shard_identity *shard) {
    char theirs[DIGEST_TEXT_MAX], ours[DIGEST_TEXT_MAX];
    if (front->protocol != shard->protocol) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "identity.protocol",
                   "the front speaks version %" PRIu32 " of expertd.shard.v1, this shard version %" PRIu32
                   ": install one version of expertd on both",
                   front->protocol, shard->protocol);
    }
    if (strcmp(front->compute_dtype, shard->compute_dtype) != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "identity.compute_dtype",
                   "the front computes in %.16s, this shard in %s: start both with the same --compute-dtype", front->compute_dtype,
                   shard->compute_dtype);
    }
    if (memcmp(front->model_digest, shard->model_digest, SHARD_DIGEST_LENGTH) != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "identity.model_digest",
                   "the front's model has the digest %s, this shard's %s: start both with the same checkpoint and --layers",
                   digest_text(front->model_digest, theirs), digest_text(shard->model_digest, ours));
    }
    if (strcmp(front->numerics_id, shard->numerics_id) != 0) {
        FAIL_FIELD(
            EXPERTD_ERR_INVALID, "identity.numerics_id",
            "the front computes with the numerics_id %.64s, this shard with %s, so results would have other bits: start both "
            "with --numerics portable, and with the same --widen and --quantize",
            front->numerics_id, shard->numerics_id);
    }
    return OK;
}

FALLIBLE shard_hello_check(const struct shard_front_hello *hello, const struct shard_identity *shard,
                           const struct shard_hello_limits *limits) {
    TRY(shard_hello_compare(&hello->identity, shard));
    if (hello->instance == 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "instance", "the hello has no instance: it is a random number other than 0");
    }
    if (hello->max_batch_rows > limits->max_rows || hello->max_batch_hidden > limits->max_hidden) {
        FAIL_FIELD(EXPERTD_ERR_TOO_LARGE, "max_batch_rows",
                   "the front's batches have up to %" PRIu32 " rows of %" PRIu32
                   " hidden rows, and this shard has memory for %" PRIu64 " rows of %" PRIu64
                   ": start both with the same --max-batch-tokens and --max-top-k",
                   hello->max_batch_rows, hello->max_batch_hidden, limits->max_rows, limits->max_hidden);
    }
    return OK;
}
