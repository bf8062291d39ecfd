// The names of formats in memory, for Describe and messages.
#include <stdio.h>
#include <string.h>

#include "expert/quantised/ggml_blocks.h"
#include "expert/quantised/quantised_matrix.h"

static const char *base_name(const struct expertd_quantised_format *f) {
    bool mx = f->scale == EXPERTD_DTYPE_F8_E8M0 && f->scale_k == 32 && !f->scale_of_panel;
    switch (f->code) {
    case EXPERTD_CODE_E4M3:
        return mx ? "mxfp8" : "fp8";
    case EXPERTD_CODE_E5M2:
        return mx ? "mxfp8_e5m2" : "fp8_e5m2";
    case EXPERTD_CODE_E2M1:
        return mx ? "mxfp4" : f->global != EXPERTD_GLOBAL_NONE ? "nvfp4" : "fp4";
    case EXPERTD_CODE_INT4:
        return "int4";
    case EXPERTD_CODE_UINT4:
        return "uint4";
    case EXPERTD_CODE_IQ4:
        return "iq4";
    default:
        return "int8";
    }
}

// "q4_k"
static const char *block_name(const struct ggml_format *blocks, char text[QUANTISED_NAME_MAX]) {
    const char *name = ggml_type_of(blocks->id)->name;
    size_t i = 0;
    for (; name[i]; i++) {
        text[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] - 'A' + 'a' : name[i]);
    }
    text[i] = '\0';
    return text;
}

const char *quantised_name(const struct quantised_matrix *m, char text[QUANTISED_NAME_MAX]) {
    if (m->blocks) {
        return block_name(m->blocks, text);
    }
    if (m->affine.bits) {
        snprintf(text, QUANTISED_NAME_MAX, "affine%u_group%zu", m->affine.bits, m->format.scale_k);
        return text;
    }
    const struct expertd_quantised_format *f = &m->format;
    const char *base = base_name(f), *zero = f->zero_points ? "_zero" : "", *ordered = m->ordered ? "_ordered" : "";
    char span[32] = "";
    bool implied = strncmp(base, "mx", 2) == 0 || strcmp(base, "nvfp4") == 0;
    if (!implied && m->scale_n_stride == 0) {
        snprintf(span, sizeof span, "_tensor");
    } else if (!implied && f->scale_k == 0) {
        snprintf(span, sizeof span, "_channel");
    } else if (!implied) {
        snprintf(span, sizeof span, "_%s%zu", m->scale_columns > 1 ? "block" : "group", f->scale_k);
    }
    snprintf(text, QUANTISED_NAME_MAX, "%s%s%s%s", base, span, zero, ordered);
    return text;
}
