#include "tests/verify/cases.h"

#include <stdlib.h>

enum {
    DROPPED_ONE_IN = 8, // one in 8 choices of a caller's routes names no expert
    EXTRA_CHOICES = 1,  // of a caller's routes, beyond the router's K
};

const char *case_name(enum case_kind kind) {
    static const char *const NAMES[CASE_KIND_COUNT] = {"own router", "own router, F32", "own router, F8", "router logits",
                                                       "routes"};
    return NAMES[kind];
}

bool case_fits(enum case_kind kind, const struct model_layer *layer) {
    return kind == CASE_ROUTES || layer->params.has_router;
}

// splitmix64 (Steele, Lea, Flood 2014). Any seed is valid.
static uint64_t draw(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static float draw_unit(uint64_t *state) { // [0, 1)
    return (float)(draw(state) >> 40) * 0x1p-24f;
}

// Approximately normal, deviation 1: the sum of twelve uniform numbers minus 6.
static float draw_normal(uint64_t *state) {
    float sum = -6.0f;
    for (int i = 0; i < 12; i++) {
        sum += draw_unit(state);
    }
    return sum;
}

struct maker {
    struct verify_case *made;
    size_t count;
    uint64_t state;
};

static FALLIBLE make_tensor(struct maker *maker, enum expertd_dtype dtype, uint64_t rows, uint64_t columns,
                            struct wire_tensor *out) {
    *out = (struct wire_tensor){.present = true, .view = {.dtype = dtype, .rank = 2, .shape = {rows, columns}}};
    TRY(expertd_tensor_bytes(dtype, out->view.shape, 2, &out->view.bytes));
    void *data = calloc(1, out->view.bytes ? out->view.bytes : 1);
    if (!data) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %llu bytes of inputs", (unsigned long long)out->view.bytes);
    }
    INVARIANT(maker->count < CASE_TENSOR_COUNT);
    maker->made->owned[maker->count++] = data;
    out->view.data = data;
    return OK;
}

static FALLIBLE make_normal(struct maker *maker, enum expertd_dtype dtype, uint64_t rows, uint64_t columns,
                            struct wire_tensor *out) {
    TRY(make_tensor(maker, dtype, rows, columns, out));
    uint8_t *bytes = (uint8_t *)out->view.data;
    for (uint64_t i = 0; i < rows * columns; i++) {
        float value = draw_normal(&maker->state);
        expertd_dtype_narrow(&value, 1, dtype, bytes + i * expertd_dtype_size(dtype));
    }
    return OK;
}

// Random codes except the two NaNs, with scales that give values of the magnitude of hidden states.
static FALLIBLE make_f8(struct maker *maker, uint64_t rows, uint64_t columns, struct wire_request *request) {
    TRY(make_tensor(maker, EXPERTD_DTYPE_F8_E4M3, rows, columns, &request->hidden));
    uint8_t *codes = (uint8_t *)request->hidden.view.data;
    for (uint64_t i = 0; i < rows * columns; i++) {
        uint8_t code = (uint8_t)draw(&maker->state);
        codes[i] = (code & 0x7f) == 0x7f ? 0 : code;
    }
    TRY(make_tensor(maker, EXPERTD_DTYPE_F32, rows, 1, &request->hidden_scale));
    float *scales = (float *)request->hidden_scale.view.data;
    for (uint64_t i = 0; i < rows; i++) {
        scales[i] = (0.5f + draw_unit(&maker->state)) / 64.0f;
    }
    return OK;
}

static FALLIBLE make_routes(struct maker *maker, const struct case_options *o, struct wire_request *request) {
    uint32_t experts = o->layer->params.num_experts + o->layer->params.num_zero_experts;
    uint32_t choices = o->layer->params.routing.top_k + EXTRA_CHOICES;
    choices = choices > o->max_top_k ? o->max_top_k : choices;
    TRY(make_tensor(maker, EXPERTD_DTYPE_I64, o->tokens, choices, &request->ids));
    TRY(make_tensor(maker, EXPERTD_DTYPE_BF16, o->tokens, choices, &request->weights));
    int64_t *ids = (int64_t *)request->ids.view.data;
    uint16_t *weights = (uint16_t *)request->weights.view.data;
    for (uint64_t i = 0; i < o->tokens * choices; i++) {
        bool dropped = draw(&maker->state) % DROPPED_ONE_IN == 0;
        ids[i] = dropped ? -1 : (int64_t)(draw(&maker->state) % experts); // repeated experts occur by chance
        weights[i] = expertd_bf16_from_f32(draw_unit(&maker->state));
    }
    return OK;
}

static FALLIBLE make_token_ids(struct maker *maker, const struct case_options *o, struct wire_request *request) {
    if (!o->layer->params.needs_token_ids || o->kind == CASE_ROUTES) {
        return OK;
    }
    TRY(make_tensor(maker, EXPERTD_DTYPE_I32, o->tokens, 1, &request->token_ids));
    request->token_ids.view.rank = 1;
    int32_t *ids = (int32_t *)request->token_ids.view.data;
    for (uint64_t i = 0; i < o->tokens; i++) {
        ids[i] = (int32_t)(draw(&maker->state) % o->layer->params.num_token_ids);
    }
    return OK;
}

FALLIBLE case_init(const struct case_options *o, struct verify_case *out) {
    static const enum expertd_dtype DTYPES[CASE_KIND_COUNT] = {EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F32, EXPERTD_DTYPE_NONE,
                                                               EXPERTD_DTYPE_F16, EXPERTD_DTYPE_BF16};
    static const enum expertd_dtype OUTPUTS[CASE_KIND_COUNT] = {EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F32, EXPERTD_DTYPE_F32,
                                                                EXPERTD_DTYPE_F16, EXPERTD_DTYPE_F32};
    *out = (struct verify_case){.kind = o->kind};
    const struct layer_params *params = &o->layer->params;
    struct maker maker = {.made = out, .state = o->seed ^ (uint64_t)params->layer << 32 ^ o->tokens << 8 ^ (uint64_t)o->kind};
    struct wire_request *request = &out->request;
    request->layer = params->layer;
    request->weights_id = o->layer->weights_id;
    request->output_dtype = OUTPUTS[o->kind];
    if (o->kind == CASE_OWN_F8) {
        TRY(make_f8(&maker, o->tokens, params->hidden_size, request));
    } else {
        TRY(make_normal(&maker, DTYPES[o->kind], o->tokens, params->hidden_size, &request->hidden));
    }
    TRY(make_token_ids(&maker, o, request));
    if (params->needs_router_input && o->kind != CASE_ROUTES && o->kind != CASE_LOGITS) {
        enum expertd_dtype dtype = o->kind == CASE_OWN_F8 ? EXPERTD_DTYPE_F16 : DTYPES[o->kind];
        TRY(make_normal(&maker, dtype, o->tokens, params->hidden_size, &request->router_input));
    }
    bool has_shared = params->shared != SHARED_NONE;
    out->with_shared = has_shared && o->kind != CASE_LOGITS;
    if (o->kind == CASE_LOGITS) {
        request->routing = WIRE_ROUTING_LOGITS;
        request->shared = WIRE_SHARED_EXCLUDE;
        return make_normal(&maker, EXPERTD_DTYPE_F32, o->tokens, params->routing.num_experts, &request->router_logits);
    }
    if (o->kind == CASE_ROUTES) {
        request->routing = WIRE_ROUTING_ROUTES;
        request->shared = has_shared ? WIRE_SHARED_INCLUDE : WIRE_SHARED_UNSPECIFIED;
        return make_routes(&maker, o, request);
    }
    return OK;
}

void case_deinit(struct verify_case *verify_case) {
    for (size_t i = 0; i < CASE_TENSOR_COUNT; i++) {
        free(verify_case->owned[i]);
    }
    *verify_case = (struct verify_case){0};
}
