// An open checkpoint from which single experts are loaded, for processes that hold some of a model's experts: a front, whose other
// experts are on remote shards, and a shard. Only the bytes of these experts are read.
#ifndef EXPERTD_EXPERT_STORE_EXPERT_STORE_H
#define EXPERTD_EXPERT_STORE_EXPERT_STORE_H

#include <stdint.h>

#include "base/err.h"
#include "expert/loader/model_options.h"
#include "expert/model/model.h"

struct expert_store;

// Opens the model, whose options->parts is not MODEL_ALL, and loads what belongs to no routed expert, if that is part of it. Errors
// as model_load. The strings and the team of the options are borrowed for the store's life. model: the caller's, owned by the store
// until it is closed; its experts' digests and, until expert_store_identify, its ids are 0.
FALLIBLE expert_store_open(const struct model_options *options, struct model *model, struct expert_store **out);
void expert_store_close(struct expert_store *store); // also releases the model. NULL is legal

// Reads, digests and packs one expert of model->layers[layer] into a block of its own, on `node` unless that is NULL. The caller
// owns the block's one reference. thread: below the number of the team's threads; different threads may load at the same time.
// *digest: as in model_layer.expert_digests. EXPERTD_ERR_CHECKPOINT: the message names layer, expert, tensor and file.
// EXPERTD_ERR_NOMEM.
FALLIBLE expert_store_load(struct expert_store *store, size_t layer, uint32_t expert, unsigned thread,
                           const struct topology_node *node, struct expert_block **out, uint64_t *digest);

uint64_t expert_store_bytes_read(const struct expert_store *store); // of tensors, as stored; any thread

// The digest of the model's configuration and shapes: Identity.model_digest of expertd.shard.v1. Equal for every open store of the
// same model and layers, whatever its part.
void expert_store_shapes_digest(const struct expert_store *store, uint8_t digest[16]);

// Sets the weights_ids of the model's layers and the model's digest. The caller has set all expert_digests.
void expert_store_identify(struct expert_store *store);

#endif
