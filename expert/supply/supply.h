// The interface through which the loader gets weights, one tensor at a time. Two sources implement it: a mapped checkpoint
// (checkpoint_supply.h) and generated weights (synthetic/). Both describe their layers as layer_tensors, so that sizing, packing
// and digests have one code path. A vector is a matrix of one row.
//
// The steps of a tensor, in this order: supply_fetch, supply_prepare, supply_unpack, supply_digest, supply_convert, supply_release.
//
// Immutable once open. Any thread may fetch; each needs its own staging memory.
#ifndef EXPERTD_EXPERT_SUPPLY_SUPPLY_H
#define EXPERTD_EXPERT_SUPPLY_SUPPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/layout/layer_tensors.h"
#include "expertd/kernels/weights.h"

struct checkpoint;
struct digest;
struct quantise_format;
struct safetensors_entry;

// An expert's tensors in the order in which its digest covers them. The order is part of every weights_id: never change it.
// A routed expert of a layer with a latent space has L instead of H.
enum supply_tensor {
    SUPPLY_GATE,      // [I, H]
    SUPPLY_UP,        // [I, H]
    SUPPLY_DOWN,      // [H, I]
    SUPPLY_GATE_BIAS, // [I]
    SUPPLY_UP_BIAS,   // [I]
    SUPPLY_DOWN_BIAS, // [H]; of SUPPLY_SHARED: the block's output bias (SHARED_BIAS)
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

// A value for `expert`: selects the layer's shared expert, and the tensors that belong to no expert.
#define SUPPLY_SHARED UINT32_MAX

// Which quantised matrices are widened, i.e. converted to elements of the compute dtype, before they are packed.
enum supply_widen {
    SUPPLY_WIDEN_NONE,
    SUPPLY_WIDEN_ALL,
    // Those that devices have no kernel for: a format without one (device_codes_supported), and both of gate and up, which one
    // kernel multiplies, if it cannot read both in one format.
    SUPPLY_WIDEN_FOR_DEVICES,
};

struct supply {
    struct layer_tensors *layers; // [count], ascending; owned. Generated weights: only params, prefix and weight_dtype are set
    size_t count;
    enum supply_widen widen;
    enum expertd_dtype widen_dtype;         // F32 or BF16
    const struct quantise_format *quantise; // quantise the routed experts' plain matrices; NULL: keep the elements
    char model_type[64];
    const char *identity; // for the model's digest: the bytes of config.json, or the canonical name of a synthetic model
    size_t identity_length;
    const struct supply_source *source; // the implementation; its state follows
    // of checkpoint_supply.c
    struct checkpoint *checkpoint; // owned
    // of synthetic.c
    uint64_t seed;
    const struct synthetic_format *format; // of the experts' matrices; NULL: BF16
    char canonical[128];                   // the model's name with every key spelled out
};

struct supply_matrix {
    size_t n, k;                              // n = 1: a vector
    struct expertd_weight_source source;      // data NULL: quantised, or generated and not yet fetched
    const struct quantised_matrix *quantised; // NULL: plain elements; borrowed from the supply, or &generated
    struct quantised_matrix generated;        // made by the implementation; such a struct must not be copied
    enum expertd_dtype widen;                 // it is quantised, and elements of this dtype are packed; EXPERTD_DTYPE_NONE: codes
    const struct quantise_format *quantise;   // NULL unless plain elements are to be packed as codes
    struct quantised_rows rows;               // of `quantised`, set by supply_unpack; or of `quantise`, set by supply_convert
};

// What an implementation provides. The matrix already has its n and k.
struct supply_source {
    // Sets source, or quantised and perhaps widen; false: the layer has no such tensor.
    bool (*describe)(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                     struct supply_matrix *out);
    // Bytes that the implementation needs in the staging memory.
    size_t (*staging_bytes)(const struct supply_matrix *matrix);
    // Writes the tensor's data to `staging` [staging_bytes] and points the matrix there. NULL: describe has set the data.
    void (*generate)(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                     void *staging, struct supply_matrix *matrix);
    // As the functions below with the same names. NULL: nothing to do, or no file.
    err_t (*prepare)(const struct supply *supply, const struct supply_matrix *matrix);
    void (*release)(const struct supply *supply, const struct supply_matrix *matrix);
    const char *(*file_of)(const struct supply *supply, const struct safetensors_entry *tensor);
    const struct safetensors_entry *(*tensor_of)(const struct supply *supply, const struct supply_matrix *matrix);
    err_t (*finish)(const struct supply *supply);
    void (*close)(struct supply *supply);
};

void supply_close(struct supply *supply); // legal on a zeroed struct

// The tensor's shape, dtype and layout, without data if it is generated; false: the layer has no such tensor.
bool supply_describe(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                     struct supply_matrix *out);

// The format of the codes that are packed; NULL: plain elements are packed.
const struct expertd_quantised_format *supply_codes(const struct supply_matrix *matrix);

// Bytes of 64-byte aligned staging memory that suffice for every tensor.
size_t supply_staging_bytes(const struct supply *supply);

// As supply_describe, with data: in the mapped file (borrowed from the supply) or generated into `staging`.
bool supply_fetch(const struct supply *supply, const struct layer_tensors *layer, uint32_t expert, enum supply_tensor tensor,
                  void *staging, struct supply_matrix *out);

// Asks the system to read the tensor's pages. EXPERTD_ERR_CHECKPOINT: the file was truncated since it was opened.
FALLIBLE supply_prepare(const struct supply *supply, const struct supply_matrix *matrix);

// Converts the codes of a quantised tensor to rows, in matrix->rows. EXPERTD_ERR_CHECKPOINT: invalid codes or scales.
FALLIBLE supply_unpack(void *staging, struct supply_matrix *matrix);

// Is it a matrix, and every byte of it in the file 0? No training and no quantiser writes that; a file whose space was reserved
// before its data came has it where the data are missing. Reads the bytes up to the first other one. After supply_prepare.
bool supply_is_zero(const struct supply_matrix *matrix);

// Adds the stored codes to the digest, and everything else that the tensor's values depend on.
void supply_digest(const struct supply_matrix *matrix, void *staging, struct digest *digest);

// Converts the tensor to what is packed, if it is stored otherwise: codes to elements of matrix->widen, in matrix->source; elements
// to codes of matrix->quantise, in matrix->rows. EXPERTD_ERR_CHECKPOINT: a weight cannot be quantised, or codes cannot be
// packed.
FALLIBLE supply_convert(void *staging, struct supply_matrix *matrix);

// Releases the tensor's pages, which count as this process's memory until then. Another tensor on one of these pages causes the
// page to be read again.
void supply_release(const struct supply *supply, const struct supply_matrix *matrix);

// The tensor in which the matrix begins, for messages; NULL for generated weights. Searches all tensors.
const struct safetensors_entry *supply_tensor_of(const struct supply *supply, const struct supply_matrix *matrix);

// After the last tensor. EXPERTD_ERR_CHECKPOINT: a file was written while its tensors were read.
FALLIBLE supply_finish(const struct supply *supply);

// Bytes from the first to the last of the matrix's plain elements. Strides may leave elements of other matrices between them.
size_t supply_source_span(const struct supply_matrix *matrix);

// Bytes of the tensor as stored.
uint64_t supply_matrix_bytes(const struct supply_matrix *matrix);

// The path of the file that holds the tensor, for messages; "" for generated weights.
const char *supply_file_of(const struct supply *supply, const struct safetensors_entry *tensor);

#endif
