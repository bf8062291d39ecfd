#include "expertd/kernels/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/backend/backend.h"
#include "kernels/products/matmul_check.h"

struct expertd_matmul_options expertd_matmul_options_default(void) {
    return (struct expertd_matmul_options){
        .compiler =
            {
                .dimension_semantics = {EXPERTD_DIMENSION_PARALLEL, EXPERTD_DIMENSION_PARALLEL, EXPERTD_DIMENSION_ARBITRARY},
                .allow_input_fusion = {true, true},
                .shape_invariant_numerics = true,
                .fuse_transposed_lhs_in_matmul = true,
            },
    };
}

static FALLIBLE set_bool(const char *key, const char *value, bool *out) {
    if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, key, "%s is %s: it must be true or false", key, value);
    }
    *out = value[0] == 't';
    return OK;
}

static FALLIBLE set_bytes(const char *key, const char *value, size_t *out) {
    char *end;
    errno = 0;
    unsigned long long bytes = strtoull(value, &end, 10);
    if (errno || *end || end == value || *value < '0' || *value > '9' || bytes > SIZE_MAX) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, key, "%s is %s: it must be a number of bytes", key, value);
    }
    *out = (size_t)bytes;
    return OK;
}

// The next word of a comma-separated list; NULL past its end.
static const char *next_word(const char **list, size_t *length) {
    const char *word = *list;
    if (!word) {
        return NULL;
    }
    const char *comma = strchr(word, ',');
    *length = comma ? (size_t)(comma - word) : strlen(word);
    *list = comma ? comma + 1 : NULL;
    return word;
}

static bool word_is(const char *word, size_t length, const char *text) {
    return length == strlen(text) && memcmp(word, text, length) == 0;
}

static FALLIBLE set_semantics(const char *value, struct expertd_compiler_params *params) {
    enum expertd_dimension_semantics parsed[3];
    const char *rest = value, *word;
    size_t length, count = 0;
    while ((word = next_word(&rest, &length))) {
        bool parallel = word_is(word, length, "parallel");
        if (count == 3 || (!parallel && !word_is(word, length, "arbitrary"))) {
            count = 0;
            break;
        }
        parsed[count++] = parallel ? EXPERTD_DIMENSION_PARALLEL : EXPERTD_DIMENSION_ARBITRARY;
    }
    if (count != 3) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "dimension_semantics",
                   "dimension_semantics is %s: it must be three words separated by commas, for n, the m tiles and k, each parallel "
                   "or arbitrary",
                   value);
    }
    memcpy(params->dimension_semantics, parsed, sizeof parsed);
    return OK;
}

static FALLIBLE set_fusion(const char *value, struct expertd_compiler_params *params) {
    bool parsed[2];
    const char *rest = value, *word;
    size_t length, count = 0;
    while ((word = next_word(&rest, &length))) {
        bool yes = word_is(word, length, "true");
        if (count == 2 || (!yes && !word_is(word, length, "false"))) {
            count = 0;
            break;
        }
        parsed[count++] = yes;
    }
    if (count != 2) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "allow_input_fusion",
                   "allow_input_fusion is %s: it must be two words separated by a comma, for lhs and rhs, each true or false",
                   value);
    }
    memcpy(params->allow_input_fusion, parsed, sizeof parsed);
    return OK;
}

static FALLIBLE set_flags(const char *value, struct expertd_compiler_params *params) {
    static const char KERNELS[] = "kernels=";
    if (strncmp(value, KERNELS, sizeof KERNELS - 1) != 0 || strchr(value, ',')) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "flags", "flags is %s: the only flag is kernels=NAME, the backend that must be selected",
                   value);
    }
    params->kernels = value + sizeof KERNELS - 1;
    return OK;
}

struct refusal {
    const char *key, *why;
};

#define WHY_ALONE "an operation runs in one process and communicates with no other"
#define WHY_TPU "it concerns the TPU's compiler alone and has no effect on this device"

static const struct refusal REFUSALS[] = {
    {"collective_id", WHY_ALONE},
    {"skip_device_barrier", WHY_ALONE},
    {"disable_semaphore_checks", WHY_ALONE},
    {"has_side_effects", WHY_TPU},
    {"serialization_format", WHY_TPU},
    {"kernel_type", WHY_TPU},
    {"allow_collective_id_without_custom_barrier", WHY_TPU},
    {"use_tc_tiling_on_sc", WHY_TPU},
    {"needs_layout_passes", WHY_TPU},
};

static FALLIBLE refuse(const char *key) {
    for (size_t i = 0; i < sizeof REFUSALS / sizeof *REFUSALS; i++) {
        if (strcmp(key, REFUSALS[i].key) == 0) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, key, "%s cannot be set: %s", key, REFUSALS[i].why);
        }
    }
    FAIL_FIELD(EXPERTD_ERR_INVALID, key, "there is no option %s: expertd/kernels/options.h lists the options", key);
}

FALLIBLE expertd_compiler_params_set(struct expertd_compiler_params *params, const char *key, const char *value) {
    const struct {
        const char *key;
        bool *flag;
    } FLAGS[] = {
        {"shape_invariant_numerics", &params->shape_invariant_numerics},
        {"fuse_transposed_lhs_in_matmul", &params->fuse_transposed_lhs_in_matmul},
        {"disable_bounds_checks", &params->disable_bounds_checks},
    };
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++) {
        if (strcmp(key, FLAGS[i].key) == 0) {
            return set_bool(key, value, FLAGS[i].flag);
        }
    }
    if (strcmp(key, "vmem_limit_bytes") == 0) {
        return set_bytes(key, value, &params->vmem_limit_bytes);
    }
    if (strcmp(key, "internal_scratch_in_bytes") == 0) {
        return set_bytes(key, value, &params->internal_scratch_in_bytes);
    }
    if (strcmp(key, "dimension_semantics") == 0) {
        return set_semantics(value, params);
    }
    if (strcmp(key, "allow_input_fusion") == 0) {
        return set_fusion(value, params);
    }
    if (strcmp(key, "flags") == 0) {
        return set_flags(value, params);
    }
    return refuse(key);
}

FALLIBLE expertd_matmul_options_check(const struct expertd_matmul_options *options) {
    const struct expertd_compiler_params *compiler = &options->compiler;
    for (size_t i = 0; i < sizeof compiler->dimension_semantics / sizeof *compiler->dimension_semantics; i++) {
        if ((unsigned)compiler->dimension_semantics[i] > EXPERTD_DIMENSION_ARBITRARY) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "dimension_semantics",
                       "dimension_semantics[%zu] is %d: it must be parallel or arbitrary", i,
                       (int)compiler->dimension_semantics[i]);
        }
    }
    if (compiler->dimension_semantics[2] != EXPERTD_DIMENSION_ARBITRARY) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "dimension_semantics",
                   "dimension_semantics of k is parallel, but k is never split: the order of a sum is part of its result");
    }
    TRY(matmul_check_tiling(&options->tiling));
    const char *selected = kernel_selected()->name;
    if (compiler->kernels && strcmp(compiler->kernels, selected) != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "flags", "flags require kernels=%s, but %s is selected: call expertd_kernel_select first",
                   compiler->kernels, selected);
    }
    return OK;
}
