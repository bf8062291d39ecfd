// Where the loader gets weights from, one tensor at a time: a mapped checkpoint, or a synthetic model whose tensors are generated.
// Both describe themselves as layer_tensors, so that sizing, packing and digests have one path. Vectors are matrices of one row.
// Immutable once open; any thread may fetch, each with its own staging memory.
#ifndef EXPERTD_EXPERT_CHECKPOINT_SUPPLY_H
#define EXPERTD_EXPERT_CHECKPOINT_SUPPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/checkpoint/checkpoint.h"
#include "expert/checkpoint/digest.h"
#include "expert/checkpoint/layer_tensors.h"
#include "expertd/kernels/weights.h"

// An expert's tensors stand in the order in which its digest takes them: part of every weights_id, never to be changed.
enum supply_tensor {
    SUPPLY_GATE,      // [I, H]; of a routed expert L is in the place of H where the layer has an L, here and in the next ones
    SUPPLY_UP,        // [I, H]
    SUPPLY_DOWN,      // [H, I]
    SUPPLY_GATE_BIAS, // [I]
    SUPPLY_UP_BIAS,   // [I]
    SUPPLY_DOWN_BIAS, // [H]; of SUPPLY_SHARED the bias on the output, where the block has one
    SUPPLY_EXPERT_TENSORS,
    SUPPLY_ROUTER = SUPPLY_EXPERT_TENSORS, // [E + Z, H]
    SUPPLY_ROUTER_BIAS,                    // [E + Z]
    SUPPLY_SELECTION_BIAS,                 // [E + Z]
    SUPPLY_SHARED_GATE,                    // [1, H]
    SUPPLY_LATENT_IN,                      // [L, H]
    SUPPLY_LATENT_OUT,                     // [H, L]
    SUPPLY_OUTPUT_NORM,                    // [H]
    SUPPLY_TENSORS
};

// In place of an expert's number: the layer's shared expert; also what goes with the tensors that belong to no expert.
#define SUPPLY_SHARED UINT32_MAX

struct supply {
    struct layer_tensors *layers; // [count], ascending; owned. Generated: only params, prefix and dtype are set
    size_t count;
    enum expertd_dtype widen;      // quantised weights become elements of this dtype; EXPERTD_DTYPE_NONE: they stay as they are
    struct checkpoint *checkpoint; // owned; NULL where the weights are generated
    uint64_t seed;                 // generated: of every tensor
    const struct synthetic_format *format; // generated: of the experts' matrices; NULL: BF16
    char model_type[64];
    const char *identity; // config.json's bytes, or the synthetic model's canonical text below: for the model's digest
    size_t identity_length;
    char canonical[128];
};

struct supply_matrix {
    size_t n, k;                              // a vector has n = 1
    struct expertd_weight_source source;      // data NULL: quantised, or until fetched where the weights are generated
    const struct quantised_matrix *quantised; // NULL: plain elements; borrowed from the supply, or below
    struct quantised_matrix generated;        // of a supply that has no file; this struct is then not to be copied
    struct quantised_rows rows;               // of `quantised`, once unpacked
};

// The supply's own release; each opener is declared with its kind (supply_open_checkpoint, synthetic_supply).
void supply_close(struct supply *supply); // legal on a zeroed struct

// A folder's MoE layers. EXPERTD_ERR_CHECKPOINT, EXPERTD_ERR_CONFIG and EXPERTD_ERR_IO as checkpoint_open, architecture_find and
// layer_tensors_find say. `out` is to be closed on success only.
FALLIBLE supply_open_checkpoint(const char *folder, const struct layer_tensors_options *options, struct supply *out);

// The tensor's shape and how it lies; false where the layer has none.
bool supply_describe(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                     struct supply_matrix *out);

// Are the tensor's codes kept, and not widened?
bool supply_keeps_codes(const struct supply *supply, const struct supply_matrix *matrix);

// Bytes of staging memory that a thread needs for what follows, for any tensor; the greatest over all layers.
size_t supply_staging_bytes(const struct supply *supply);

// As supply_describe, with data: in the mapped file (borrowed from the supply) or generated into `staging`.
bool supply_fetch(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                  void *staging, struct supply_matrix *out);

// After supply_prepare, with the same staging memory: the codes of a quantised tensor, row by row, in matrix->rows.
// EXPERTD_ERR_CHECKPOINT: codes or scales that cannot be computed with.
FALLIBLE supply_unpack(void *staging, struct supply_matrix *matrix);

// Adds the stored codes to a digest, and whatever else the tensor's values depend on.
void supply_digest(const struct supply_matrix *matrix, void *staging, struct digest *digest);

// After supply_digest: a quantised tensor as plain elements of supply->widen, in matrix->source.
void supply_widen(const struct supply *supply, void *staging, struct supply_matrix *matrix);

// Bytes of the tensor as stored.
uint64_t supply_matrix_bytes(const struct supply_matrix *matrix);

// Asks for the tensor's pages ahead of its reading. EXPERTD_ERR_CHECKPOINT where the file has become shorter since it was opened. A
// generated tensor needs nothing.
FALLIBLE supply_prepare(const struct supply *supply, const struct supply_matrix *matrix);
// Its pages may go: they count as this process's memory until then. They are read again where a neighbour needs them.
void supply_release(const struct supply *supply, const struct supply_matrix *matrix);

#endif
