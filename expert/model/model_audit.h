// Looks for values that no sound checkpoint has, while a model is loaded: NaN, infinities, and magnitudes that no trained weight
// has. The daemon serves such values as stored; --verify names them.
#ifndef EXPERTD_EXPERT_MODEL_MODEL_AUDIT_H
#define EXPERTD_EXPERT_MODEL_MODEL_AUDIT_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/safetensors.h"

struct supply;
struct supply_matrix;
struct model_audit; // owned by its creator; the loader's threads add to it

enum { AUDIT_TENSORS_MAX = 1024 }; // further unsound tensors are only counted

// Greater magnitudes are absurd: of plain elements, and of scales with the global scale. Trained weights stay below 1000, scales
// below 100.
#define AUDIT_ELEMENT_MAX 0x1p20f
#define AUDIT_SCALE_MAX 0x1p16f

struct audited_tensor {
    char name[SAFETENSORS_NAME_BYTES_MAX + 1]; // "": generated weights
    char file[512];                            // its path, cut to fit
    uint64_t nan, infinite, absurd;            // elements, codes or scales of the tensor
    float largest;                             // magnitude of the absurd ones
};

FALLIBLE model_audit_create(struct model_audit **out);
void model_audit_destroy(struct model_audit *audit); // NULL is legal

// Looks at the values of a matrix or vector whose codes, if it has any, are unpacked. All matrices of an audit come from one
// supply. Any thread. EXPERTD_ERR_NOMEM.
FALLIBLE model_audit_add(struct model_audit *audit, const struct supply *supply, const struct supply_matrix *matrix);

// The unsound tensors, ascending by name. After the load; *count: at most AUDIT_TENSORS_MAX.
const struct audited_tensor *model_audit_tensors(struct model_audit *audit, size_t *count);
uint64_t model_audit_omitted(const struct model_audit *audit); // matrices whose tensor is not in that list

#endif
