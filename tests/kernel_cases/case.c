#include "case.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ALIGNMENT = 64 };

static FALLIBLE parse_bound(const struct kernel_case *c, const char *key, double *out) {
    const char *text = safetensors_metadata(&c->file, key);
    if (!text) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s is missing, which a case without an error has", key);
    }
    char *end;
    *out = strtod(text, &end);
    if (end == text || *end || !isfinite(*out) || *out < 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s is \"%s\": it is a number from 0 on", key, text);
    }
    return OK;
}

static FALLIBLE copy_aligned(const struct safetensors_entry *entry, struct expertd_tensor_view *out) {
    *out = entry->view;
    void *copy = NULL;
    if (posix_memalign(&copy, ALIGNMENT, entry->view.bytes ? entry->view.bytes : 1) != 0) {
        out->data = NULL;
        FAIL(EXPERTD_ERR_NOMEM, "%s: no memory for its %llu bytes", entry->name, (unsigned long long)entry->view.bytes);
    }
    if (entry->view.bytes) {
        memcpy(copy, entry->view.data, entry->view.bytes);
    }
    out->data = copy;
    return OK;
}

static FALLIBLE copy_tensors(struct kernel_case *c) {
    if (c->file.count > CASE_TENSORS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%zu tensors: a case has at most %d", c->file.count, CASE_TENSORS_MAX);
    }
    for (size_t i = 0; i < c->file.count; i++) {
        if (c->file.entries[i].view.dtype == EXPERTD_DTYPE_NONE) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s has a dtype that no case has", c->file.entries[i].name);
        }
        TRY(copy_aligned(&c->file.entries[i], &c->tensors[i]));
    }
    return OK;
}

static FALLIBLE read_outcome(struct kernel_case *c) {
    static const char INVALID[] = "INVALID_ARGUMENT:";
    const char *error = safetensors_metadata(&c->file, "error");
    if (!error) {
        TRY(parse_bound(c, "atol", &c->atol));
        return parse_bound(c, "rtol", &c->rtol);
    }
    if (strncmp(error, INVALID, sizeof INVALID - 1) != 0 || !error[sizeof INVALID - 1]) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "error is \"%s\": it is %sNAME", error, INVALID);
    }
    c->expected_error = error + sizeof INVALID - 1;
    return OK;
}

FALLIBLE case_open(const char *path, struct kernel_case *out) {
    *out = (struct kernel_case){0};
    err_t e = safetensors_open(path, &out->file);
    if (!err_is(e)) {
        e = copy_tensors(out);
    }
    if (!err_is(e)) {
        e = read_outcome(out);
    }
    if (err_is(e)) {
        case_close(out);
    }
    return e;
}

void case_close(struct kernel_case *c) {
    for (size_t i = 0; i < CASE_TENSORS_MAX; i++) {
        free((void *)(uintptr_t)c->tensors[i].data);
    }
    safetensors_close(&c->file);
    *c = (struct kernel_case){0};
}

const char *case_text(const struct kernel_case *c, const char *key) {
    const char *text = safetensors_metadata(&c->file, key);
    return text ? text : "";
}

static bool parse_integer(const char *text, char **end, int64_t *out) {
    bool digits = *text >= '0' && *text <= '9';
    if (!digits && !(*text == '-' && text[1] >= '0' && text[1] <= '9')) {
        return false;
    }
    errno = 0;
    *out = strtoll(text, end, 10);
    return errno == 0;
}

FALLIBLE case_integer(const struct kernel_case *c, const char *key, int64_t absent, int64_t *out) {
    const char *text = safetensors_metadata(&c->file, key);
    *out = absent;
    if (!text) {
        return OK;
    }
    char *end;
    if (!parse_integer(text, &end, out) || *end) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, key, "%s is \"%s\": it is an integer", key, text);
    }
    return OK;
}

FALLIBLE case_flag(const struct kernel_case *c, const char *key, bool *out) {
    const char *text = safetensors_metadata(&c->file, key);
    *out = false;
    if (!text) {
        return OK;
    }
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, key, "%s is \"%s\": it is true or false", key, text);
    }
    *out = text[0] == 't';
    return OK;
}

FALLIBLE case_dtype(const struct kernel_case *c, const char *key, enum expertd_dtype *out) {
    const char *text = safetensors_metadata(&c->file, key);
    *out = text ? expertd_dtype_from_name(text, strlen(text)) : EXPERTD_DTYPE_NONE;
    if (text && *out == EXPERTD_DTYPE_NONE) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, key, "%s is \"%s\": there is no such dtype", key, text);
    }
    return OK;
}

FALLIBLE case_options(const struct kernel_case *c, struct expertd_matmul_options *out) {
    *out = expertd_matmul_options_default();
    out->interpret = c->interpret;
    const char *text = safetensors_metadata(&c->file, "tiling");
    if (!text) {
        return OK;
    }
    int64_t tile[3];
    const char *at = text;
    for (size_t i = 0; i < 3; i++) {
        char *end;
        if (!parse_integer(at, &end, &tile[i]) || tile[i] < 1 || *end != (i < 2 ? ',' : '\0')) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "tiling", "tiling is \"%s\": it is tm,tk,tn, each 1 or more", text);
        }
        at = end + 1;
    }
    out->tiling = (struct expertd_matmul_tiling){(size_t)tile[0], (size_t)tile[1], (size_t)tile[2]};
    return OK;
}

const struct expertd_tensor_view *case_tensor(const struct kernel_case *c, const char *name) {
    const struct safetensors_entry *entry = safetensors_find(&c->file, name);
    return entry ? &c->tensors[entry - c->file.entries] : NULL;
}

FALLIBLE case_expected(const struct kernel_case *c, const char *name, const struct case_answer *answer,
                       const struct expertd_tensor_view **out) {
    const struct expertd_tensor_view *view = case_tensor(c, name);
    if (!view) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "expected tensor %s is missing", name);
    }
    bool same = view->dtype == answer->dtype && view->rank == answer->rank;
    for (uint32_t i = 0; same && i < answer->rank; i++) {
        same = view->shape[i] == answer->shape[i];
    }
    if (!same) {
        char found_text[EXPERTD_TENSOR_SHAPE_TEXT_MAX], gives[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "expected tensor %s is %s%s, but the operation gives %s%s", name,
             expertd_dtype_name(view->dtype), expertd_tensor_shape_text(view->shape, view->rank, found_text),
             expertd_dtype_name(answer->dtype), expertd_tensor_shape_text(answer->shape, answer->rank, gives));
    }
    *out = view;
    return OK;
}

static double value_at(enum expertd_dtype dtype, const void *data, uint64_t i) {
    if (dtype == EXPERTD_DTYPE_I32) {
        return ((const int32_t *)data)[i];
    }
    float value;
    expertd_dtype_widen(dtype, (const char *)data + i * expertd_dtype_size(dtype), 1, &value);
    return (double)value;
}

static bool within(const struct kernel_case *c, double got, double want) {
    if (isnan(want) || isnan(got)) {
        return isnan(want) && isnan(got);
    }
    if (isinf(want) || isinf(got)) {
        return got == want;
    }
    return fabs(got - want) <= c->atol + c->rtol * fabs(want);
}

FALLIBLE case_compare(const struct kernel_case *c, const char *name, const struct expertd_tensor_view *expected, const void *got) {
    uint64_t count, wrong = 0, first = 0;
    TRY(expertd_tensor_elements(expected->shape, expected->rank, &count));
    for (uint64_t i = 0; i < count; i++) {
        if (!within(c, value_at(expected->dtype, got, i), value_at(expected->dtype, expected->data, i))) {
            first = wrong++ ? first : i;
        }
    }
    if (wrong) {
        FAIL(EXPERTD_ERR_INTERNAL, "%s[%llu] is %.9g, not %.9g (atol %g, rtol %g); %llu of %llu elements differ", name,
             (unsigned long long)first, value_at(expected->dtype, got, first), value_at(expected->dtype, expected->data, first),
             c->atol, c->rtol, (unsigned long long)wrong, (unsigned long long)count);
    }
    return OK;
}

// Poisons an output: NaN for most floats, 0x7f7f7f7f for integers.
static void poison(enum expertd_dtype dtype, uint64_t elements, void *out) {
    memset(out, 0x7f, elements * expertd_dtype_size(dtype)); // F16: NaN; BF16: 3.4e38
    for (uint64_t i = 0; dtype == EXPERTD_DTYPE_BF16 && i < elements; i++) {
        ((uint16_t *)out)[i] = 0x7fff;
    }
    for (uint64_t i = 0; dtype == EXPERTD_DTYPE_F32 && i < elements; i++) {
        ((float *)out)[i] = NAN;
    }
}

// The shape was compared with a tensor of the file, so the product does not overflow.
static uint64_t elements_of(const struct case_answer *answer) {
    uint64_t elements = 1;
    for (uint32_t i = 0; i < answer->rank; i++) {
        elements *= answer->shape[i];
    }
    return elements;
}

static FALLIBLE run_poisoned(const struct case_run *run, struct case_device *device, struct expertd_team *team, void **out) {
    uint64_t elements = elements_of(&run->answer);
    if (posix_memalign(out, ALIGNMENT, elements * expertd_dtype_size(run->answer.dtype) + 1) != 0) {
        *out = NULL;
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %llu elements of output", (unsigned long long)elements);
    }
    poison(run->answer.dtype, elements, *out);
    return run->run(run->context, &(struct case_target){device, team}, *out);
}

// Any NaN equals any other. x86 and GPUs produce different NaNs for Inf - Inf, and where two NaNs meet in an fma, the form of the
// instruction decides, which differs between kernels for small and large m.
static bool both_nan(enum expertd_dtype dtype, const void *first, const void *second, uint64_t i) {
    return isnan(value_at(dtype, first, i)) && isnan(value_at(dtype, second, i));
}

static FALLIBLE same_bits(const struct case_run *run, const void *first, const void *second, const char *when) {
    enum expertd_dtype dtype = run->answer.dtype;
    size_t size = expertd_dtype_size(dtype);
    uint64_t elements = elements_of(&run->answer);
    for (uint64_t i = 0; i < elements; i++) {
        if (memcmp((const char *)first + i * size, (const char *)second + i * size, size) != 0 &&
            !both_nan(dtype, first, second, i)) {
            FAIL(EXPERTD_ERR_INTERNAL, "out[%llu] is %.9g at first, but %.9g %s", (unsigned long long)i, value_at(dtype, first, i),
                 value_at(dtype, second, i), when);
        }
    }
    return OK;
}

FALLIBLE case_run_twice(const struct kernel_case *c, const struct case_run *run) {
    const struct expertd_tensor_view *expected;
    TRY(case_expected(c, "out", &run->answer, &expected)); // also bounds the allocation
    void *first = NULL, *second = NULL, *twin = NULL;
    err_t e;
    TRY_OUT(e, run_poisoned(run, c->device, NULL, &first));
    TRY_OUT(e, case_compare(c, "out", expected, first));
    TRY_OUT(e, run_poisoned(run, c->device, c->team, &second));
    TRY_OUT(e, same_bits(run, first, second, "the second time"));
    if (c->device && c->has_twin) {
        TRY_OUT(e, run_poisoned(run, NULL, NULL, &twin));
        TRY_OUT(e, same_bits(run, first, twin, "by the twin"));
    }
out:
    free(first);
    free(second);
    free(twin);
    return e;
}

// The attributes of all operations.
static bool is_attribute(const char *name) {
    static const char *const KNOWN[] = {
        "format",
        "op",
        "source",
        "note",
        "error",
        "atol",
        "rtol",
        "m",
        "tm",
        "tiling",
        "group_offset",
        "num_groups",
        "trans_a",
        "trans_b",
        "transpose_rhs",
        "start_group",
        "a_first",
        "a_last",
        "b_first",
        "num_actual_groups",
        "scaling_a",
        "scaling_b",
        "b_last",
        "out_first",
        "num_nonzero_groups",
        "rhs_code",
        "out_last",
        "scale_block",
        "visit_empty_groups",
        "rhs_global_op",
        "atol_fp8_mma",
        "existing_out_mode",
        "preferred_element_type",
    };
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        if (strcmp(name, KNOWN[i]) == 0) {
            return true;
        }
    }
    return false;
}

void case_note_unknown(const struct kernel_case *c, const char *path) {
    for (size_t i = 0; i < c->file.metadata_count; i++) {
        if (!is_attribute(c->file.metadata[2 * i])) {
            fprintf(stderr, "%s: nothing reads its attribute %s: a misspelt name makes another case than was meant\n", path,
                    c->file.metadata[2 * i]);
        }
    }
}
