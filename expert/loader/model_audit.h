// Looks for values that no sound checkpoint has, while a model is loaded: NaN, infinities, magnitudes that no trained weight has,
// scales that no quantiser writes; and for values that are rare in sound checkpoints. The daemon serves them as stored; --verify
// names them.
#ifndef EXPERTD_EXPERT_LOADER_MODEL_AUDIT_H
#define EXPERTD_EXPERT_LOADER_MODEL_AUDIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/safetensors.h"

struct supply;
struct supply_matrix;
struct model_audit; // owned by its creator; the loader's threads add to it

enum { AUDIT_TENSORS_MAX = 1024 }; // further tensors are only counted

// Greater magnitudes are absurd: of plain elements, and of scales with the global scale. Trained weights stay below 1000, scales
// below 100.
#define AUDIT_ELEMENT_MAX 0x1p20f
#define AUDIT_SCALE_MAX 0x1p16f
// Smaller scales are tiny: their weights vanish beside others in every arithmetic.
#define AUDIT_SCALE_MIN 0x1p-64f

enum audit_value {
    AUDIT_NAN,
    AUDIT_INFINITE,
    AUDIT_ABSURD,
    AUDIT_NEGATIVE, // scales of formats whose quantisers write none
    AUDIT_ZERO,     // scales over codes that are not 0, of formats whose quantisers write none
    AUDIT_FIRST_DOUBTFUL,
    AUDIT_UNDERFLOW = AUDIT_FIRST_DOUBTFUL, // the same, of dtypes in which a small scale becomes 0
    AUDIT_TINY,                             // scales over codes that are not 0
    AUDIT_ZEROS,                            // matrices of experts whose weights are all 0
    AUDIT_VALUES
};

enum audit_of { AUDIT_ELEMENT, AUDIT_CODE, AUDIT_SCALE, AUDIT_GLOBAL_SCALE };

struct audit_place {
    uint32_t layer;  // the decoder layer's number
    uint32_t expert; // SUPPLY_SHARED: the shared expert, or a tensor that belongs to none
    uint32_t tensor; // enum supply_tensor
    enum audit_of of;
    size_t row, at; // in the expert's matrix; at: the k of an element or a code, the group of a scale
};

struct audited_tensor {
    char name[SAFETENSORS_NAME_BYTES_MAX + 1]; // "": generated weights
    char file[512];                            // its path, cut to fit
    uint64_t count[AUDIT_VALUES];              // elements, codes or scales of the tensor, or matrices
    float largest, least;                      // magnitudes of the absurd and of the tiny ones
    struct audit_place first;
};

bool audited_is_unsound(const struct audited_tensor *tensor); // false: all its values are only doubtful

FALLIBLE model_audit_create(struct model_audit **out);
void model_audit_destroy(struct model_audit *audit); // NULL is legal

// Looks at the values of a matrix or vector whose codes, if it has any, are unpacked. at: its layer, expert and tensor. All
// matrices of an audit come from one supply. Any thread. EXPERTD_ERR_NOMEM.
FALLIBLE model_audit_add(struct model_audit *audit, const struct supply *supply, const struct supply_matrix *matrix,
                         const struct audit_place *at);

// The unsound and the doubtful tensors, ascending by name. After the load; *count: at most AUDIT_TENSORS_MAX.
const struct audited_tensor *model_audit_tensors(struct model_audit *audit, size_t *count);
// The number of matrices whose tensor is not in that list. *unsound: one of them has unsound values.
uint64_t model_audit_omitted(const struct model_audit *audit, bool *unsound);

#endif
