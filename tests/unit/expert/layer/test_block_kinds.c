// Kinds of blocks that no golden case has, as small checkpoints written here. The scalar twin, the fast path and simulated GPUs
// give the same bits, and a block's parts add up to the block, or to the input of its norm.
#include "served_layer.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/expert/checkpoint/checkpoint_builder.h"

enum { T = 11, H = 64, L = 24, I = 32, E = 8, K = 3 };

// A checkpoint of one layer: its config.json without the sizes, and its tensors' names.
struct kind {
    const char *name, *config;
    const char *router, *selection_bias, *shared, *output_bias; // names below the layer's
    const char *gate_up, *down;                                 // [E, 2I, H], [E, H, I]; NULL: latent experts
    float lowest_bias;                                          // the lowest selection bias; the highest is 2 larger
    const char *output_norm;                                    // written last
};

#define COHERE                                                                                                                     \
    "\"model_type\":\"cohere2_moe\",\"intermediate_size\":32,\"num_experts\":8,\"num_experts_per_tok\":3,\"num_shared_experts\":1"
#define DEEPSEEK(type)                                                                                                             \
    "\"model_type\":\"" type "\",\"moe_intermediate_size\":32,\"n_routed_experts\":8,\"num_experts_per_tok\":3,"                   \
    "\"n_shared_experts\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"first_k_dense_replace\":0"
#define FUSED .gate_up = "mlp.experts.gate_up_proj", .down = "mlp.experts.down_proj"
#define D1 .router = "mlp.gate.weight", FUSED
#define SHARED .shared = "mlp.shared_experts"
#define FOUR_GROUPS ",\"n_group\":4,\"topk_group\":2"
#define BIASED .selection_bias = "mlp.gate.e_score_correction_bias"

static const struct kind KINDS[] = {
    {"averaged", COHERE, D1, SHARED},
    {"averaged, sigmoid", COHERE ",\"expert_selection_fn\":\"sigmoid\"", D1, SHARED},
    {"clamped, the shared expert not", DEEPSEEK("hy_v4") ",\"n_group\":4,\"topk_group\":2,\"swiglu_limit\":0.7", D1, SHARED,
     BIASED},
    {"masked groups are zero", DEEPSEEK("axk2") ",\"n_group\":4,\"topk_group\":3", D1, SHARED, BIASED, .lowest_bias = -1.5f},
    {"logits and a bias",
     "\"model_type\":\"kolibri1\",\"moe_intermediate_size\":32,\"num_experts\":8,\"num_experts_per_tok\":3,\"norm_topk_prob\":true,"
     "\"shared_expert_intermediate_size\":32",
     D1, SHARED, .selection_bias = "moe.router.expert_bias", .lowest_bias = -1},
    {"a bias on the output",
     "\"model_type\":\"jetmoe\",\"intermediate_size\":32,\"num_local_experts\":8,\"num_experts_per_tok\":3,"
     "\"activation_function\":\"silu\"",
     .router = "mlp.router.layer.weight", .output_bias = "mlp.bias", .gate_up = "mlp.input_linear.weight",
     .down = "mlp.output_linear.weight"},
    {"capped logits",
     "\"model_type\":\"laguna\",\"moe_intermediate_size\":32,\"num_experts\":8,\"num_experts_per_tok\":3,"
     "\"norm_topk_prob\":true,\"shared_expert_intermediate_size\":32,\"moe_routed_scaling_factor\":2.5,"
     "\"moe_router_logit_softcapping\":0.7",
     D1, .shared = "mlp.shared_expert", .selection_bias = "mlp.experts.e_score_correction_bias"},
    {"latent experts",
     "\"model_type\":\"nemotron_h\",\"layers_block_type\":[\"moe\"],\"moe_intermediate_size\":32,\"n_routed_experts\":8,"
     "\"num_experts_per_tok\":3,\"n_shared_experts\":1,\"moe_shared_expert_intermediate_size\":32,\"norm_topk_prob\":true,"
     "\"n_group\":1,\"routed_scaling_factor\":2.5,\"mlp_hidden_act\":\"relu2\",\"moe_latent_size\":24",
     .router = "mixer.gate.weight", .selection_bias = "mixer.gate.e_score_correction_bias", .shared = "mixer.shared_experts"},
    {"a norm of the whole, and a selection bias that misses", DEEPSEEK("axk1") FOUR_GROUPS, D1, SHARED,
     .output_norm = "post_mlp_layernorm.weight"},
    {"a norm of the whole", DEEPSEEK("axk1") FOUR_GROUPS ",\"rms_norm_eps\":0.001", D1, SHARED, BIASED,
     .output_norm = "mlp.post_mlp_layernorm.weight"},
};
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS };

static char folder[] = "/tmp/expertd-block-kinds-XXXXXX";

// A value in [-1, 1): splitmix64's output function of a counter.
static float next_value(uint64_t *counter) {
    uint64_t x = (*counter += 0x9e3779b97f4a7c15u);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (float)(x >> 40) * 0x1p-23f - 1;
}

// A tensor of random values whose variance is 1 / `fan_in`.
static void add(struct builder *b, uint64_t *random, const char *name, size_t fan_in, uint32_t rank, int n0, int n1, int n2) {
    builder_add(b, name, EXPERTD_DTYPE_F32, 0, rank, n0, n1, n2);
    const struct expertd_tensor_view *view = &b->entries[b->count - 1].view;
    float *values = (float *)(uintptr_t)view->data;
    for (size_t i = 0; i < view->bytes / sizeof *values; i++) {
        values[i] = next_value(random) / sqrtf((float)fan_in / 3);
    }
}

#define NAMED(...) (snprintf(name, sizeof name, "model.layers.0." __VA_ARGS__), name)

static void add_experts(struct builder *b, uint64_t *random, const struct kind *kind) {
    char name[128];
    if (kind->gate_up) {
        add(b, random, NAMED("%s", kind->gate_up), H, 3, E, 2 * I, H);
        add(b, random, NAMED("%s", kind->down), I, 3, E, H, I);
        return;
    }
    add(b, random, NAMED("mixer.fc1_latent_proj.weight"), H, 2, L, H, 0);
    add(b, random, NAMED("mixer.fc2_latent_proj.weight"), L, 2, H, L, 0);
    for (int e = 0; e < E; e++) {
        add(b, random, NAMED("mixer.experts.%d.up_proj.weight", e), L, 2, I, L, 0);
        add(b, random, NAMED("mixer.experts.%d.down_proj.weight", e), I, 2, L, I, 0);
    }
}

static float norm_weights[H]; // of the checkpoint written last

static void write_kind(const struct kind *kind) {
    struct builder b = {0};
    uint64_t random = 77;
    char text[1024], name[128];
    snprintf(text, sizeof text, "{\"hidden_size\":%d,\"num_hidden_layers\":1,%s}", H, kind->config);
    builder_write_text(folder, "config.json", text);
    add(&b, &random, NAMED("%s", kind->router), H, 2, E, H, 0);
    add_experts(&b, &random, kind);
    if (kind->selection_bias) {
        add(&b, &random, NAMED("%s", kind->selection_bias), 3, 1, E, 0, 0);
        float *bias = (float *)(uintptr_t)b.entries[b.count - 1].view.data;
        for (int e = 0; e < E; e++) {
            bias[e] += kind->lowest_bias + 1;
        }
    }
    if (kind->output_bias) {
        add(&b, &random, NAMED("%s", kind->output_bias), 3, 1, H, 0, 0);
    }
    if (kind->shared) {
        if (kind->gate_up) {
            add(&b, &random, NAMED("%s.gate_proj.weight", kind->shared), H, 2, I, H, 0);
        }
        add(&b, &random, NAMED("%s.up_proj.weight", kind->shared), H, 2, I, H, 0);
        add(&b, &random, NAMED("%s.down_proj.weight", kind->shared), I, 2, H, I, 0);
    }
    if (kind->output_norm) {
        add(&b, &random, NAMED("%s", kind->output_norm), 3, 1, H, 0, 0);
        memcpy(norm_weights, b.entries[b.count - 1].view.data, sizeof norm_weights);
    }
    builder_write(&b, 0, b.count, folder, "model.safetensors");
    builder_clear(&b);
}

// ---- three requests: the whole block, its routed experts alone, its shared part alone

enum part { WHOLE, ROUTED_PART, SHARED_PART, PARTS };

struct answers {
    float of[PARTS][T * H];
};

static float hidden[T * H], no_weights[T];
static int32_t no_ids[T];

static struct expertd_tensor_view view(enum expertd_dtype dtype, const void *data, uint64_t columns) {
    return (struct expertd_tensor_view){
        .dtype = dtype, .rank = 2, .shape = {T, columns}, .data = data, .bytes = T * columns * expertd_dtype_size(dtype)};
}

static bool has_shared(const struct served *s) {
    return s->model.layers[0].params.shared != SHARED_NONE;
}

static struct layer_request request_for(const struct served *s, enum part part, float *out) {
    struct layer_request request = {.tokens = T,
                                    .hidden = view(EXPERTD_DTYPE_F32, hidden, H),
                                    .shared = part != ROUTED_PART && has_shared(s),
                                    .output_dtype = EXPERTD_DTYPE_F32,
                                    .output = out};
    if (part == SHARED_PART) { // one empty choice
        request.source = ROUTING_GIVEN;
        request.ids = view(EXPERTD_DTYPE_I32, no_ids, 1);
        request.weights = view(EXPERTD_DTYPE_F32, no_weights, 1);
    }
    memset(out, 0xff, T * H * sizeof *out);
    must(layer_request_check(&request, &s->model.layers[0], &s->limits));
    return request;
}

// Computes all parts in one batch.
static void ask_for_parts(struct served *s, struct answers *out) {
    struct layer_request requests[PARTS];
    for (int part = 0; part < PARTS; part++) {
        requests[part] = request_for(s, (enum part)part, out->of[part]);
    }
    must(layer_forward(s->engine, &s->model.layers[0], requests, PARTS, NULL, NULL));
}

static void ask_twin(struct served *s, struct answers *out) {
    for (int part = 0; part < PARTS; part++) {
        struct layer_request request = request_for(s, (enum part)part, out->of[part]);
        must(layer_forward_reference(&s->model.layers[0], s->model.compute_dtype, &request));
    }
}

static void assert_same(const struct kind *kind, const char *what, const struct answers *a, const struct answers *b) {
    for (int part = 0; part < PARTS; part++) {
        if (memcmp((const char *)a->of[part], (const char *)b->of[part], sizeof a->of[part]) != 0) {
            fail_msg("%s: %s gave part %d other bits", kind->name, what, part);
        }
    }
}

#ifdef __SANITIZE_THREAD__ // ThreadSanitizer takes seconds for each kind, and all kinds use the same threads
enum { KIND_STEP = 3 };
#else
enum { KIND_STEP = 1 };
#endif

static void every_kind_has_its_twins_bits(void **state) {
    (void)state;
    for (int i = 0; i < KIND_COUNT * 2; i += KIND_STEP) {
        const struct kind *kind = &KINDS[i / 2];
        struct served s;
        struct answers fast, twin;
        must(expertd_kernel_select("auto"));
        write_kind(kind);
        must(try_to_serve_folder(&s, folder, i % 2 ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16, 2, NULL));
        ask_for_parts(&s, &fast);
        ask_twin(&s, &twin);
        assert_same(kind, "the fast path", &fast, &twin);
        stop(&s);
    }
}

static void every_kind_has_the_bits_of_its_arithmetic_on_devices(void **state) {
    (void)state;
    for (int i = 0; i < KIND_COUNT * 2; i += KIND_STEP) {
        const struct kind *kind = &KINDS[i / 2];
        enum expertd_dtype dtype = i % 2 ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16;
        struct served on_device, on_cpu;
        struct answers device, cpu;
        must(expertd_kernel_select("scalar_sm90"));
        write_kind(kind);
        if (!kind->gate_up || kind->output_norm) { // refused at load
            const char *what =
                kind->output_norm ? "GPUs do not compute blocks that end with a norm" : "GPUs do not compute latent experts";
            assert_int_equal(try_to_serve_folder(&on_device, folder, dtype, 2, "sim:2").code, EXPERTD_ERR_UNAVAILABLE);
            assert_non_null(strstr(expertd_err_message(), what));
            stop(&on_device);
            continue;
        }
        must(try_to_serve_folder(&on_device, folder, dtype, 2, "sim:2"));
        must(try_to_serve_folder(&on_cpu, folder, dtype, 1, NULL));
        ask_for_parts(&on_device, &device);
        ask_for_parts(&on_cpu, &cpu);
        assert_same(kind, "a device", &device, &cpu);
        stop(&on_device);
        stop(&on_cpu);
    }
}

static void the_parts_add_up_to_the_block(void **state) {
    (void)state;
    for (int i = 0; i < KIND_COUNT; i++) {
        struct served s;
        struct answers a;
        if (KINDS[i].output_norm) {
            continue; // see the test of norms below
        }
        must(expertd_kernel_select("auto"));
        write_kind(&KINDS[i]);
        must(try_to_serve_folder(&s, folder, EXPERTD_DTYPE_F32, 1, NULL));
        ask_for_parts(&s, &a);
        float shared = 0;
        for (size_t j = 0; j < T * H; j++) {
            float error = fabsf(a.of[ROUTED_PART][j] + a.of[SHARED_PART][j] - a.of[WHOLE][j]);
            if (!(error <= 1e-6f)) {
                fail_msg("%s: %g and %g are %g", KINDS[i].name, (double)a.of[ROUTED_PART][j], (double)a.of[SHARED_PART][j],
                         (double)a.of[WHOLE][j]);
            }
            shared = fmaxf(shared, fabsf(a.of[SHARED_PART][j]));
        }
        assert_true(has_shared(&s) == (shared > 0.01f)); // the shared part exists
        stop(&s);
    }
}

static void ask_kind(const struct kind *kind, const char *kernels, uint32_t ranks, struct answers *out) {
    struct served s;
    must(expertd_kernel_select(kernels));
    write_kind(kind);
    must(try_to_serve_folder(&s, folder, EXPERTD_DTYPE_F32, ranks, NULL));
    ask_for_parts(&s, out);
    stop(&s);
}

// Checks the norm by its formula in double.
static void assert_normalised(const float *x, double epsilon, const float *got) {
    double squares = 0;
    for (int i = 0; i < H; i++) {
        squares += (double)x[i] * (double)x[i];
    }
    for (int i = 0; i < H; i++) {
        double wanted = (double)x[i] / sqrt(squares / H + epsilon) * (double)norm_weights[i];
        if (!(fabs((double)got[i] - wanted) <= 1e-6)) {
            fail_msg("column %d: %g, not %g", i, (double)got[i], wanted);
        }
    }
}

// Compares with the same weights in another architecture, whose block has no norm.
static void the_norm_is_applied_to_the_whole_block_only(void **state) {
    (void)state;
    const struct kind *normed = &KINDS[KIND_COUNT - 1];
    const struct kind plain = {"without", DEEPSEEK("deepseek_v3") FOUR_GROUPS, D1, SHARED, BIASED};
    struct answers with, without;
    ask_kind(&plain, "auto", 1, &without);
    ask_kind(normed, "auto", 1, &with);
    assert_memory_equal((const char *)with.of[ROUTED_PART], (const char *)without.of[ROUTED_PART], sizeof with.of[ROUTED_PART]);
    for (size_t t = 0; t < T; t++) {
        assert_normalised(without.of[WHOLE] + t * H, 0.001, with.of[WHOLE] + t * H);
        assert_normalised(without.of[SHARED_PART] + t * H, 0.001,
                          with.of[SHARED_PART] + t * H); // empty routes: only the shared part
    }
}

static void bits_after_a_norm_do_not_depend_on_shards_and_instructions(void **state) {
    (void)state;
    static const char *const KERNELS[] = {"auto", "avx2", "scalar"};
    const struct kind *normed = &KINDS[KIND_COUNT - 1];
    struct answers one, other;
    ask_kind(normed, "auto", 1, &one);
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++) {
        if (err_is(expertd_kernel_select(KERNELS[i]))) {
            continue; // not available on this machine
        }
        for (uint32_t ranks = 1; ranks <= E; ranks *= 2) {
            ask_kind(normed, KERNELS[i], ranks, &other);
            assert_same(normed, KERNELS[i], &one, &other);
        }
    }
}

static int make_inputs(void **state) {
    (void)state;
    uint64_t random = 5;
    for (size_t i = 0; i < T * H; i++) {
        hidden[i] = 2 * next_value(&random);
    }
    for (size_t t = 0; t < T; t++) {
        no_ids[t] = -1;
    }
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_has_its_twins_bits),
        cmocka_unit_test(every_kind_has_the_bits_of_its_arithmetic_on_devices),
        cmocka_unit_test(the_parts_add_up_to_the_block),
        cmocka_unit_test(the_norm_is_applied_to_the_whole_block_only),
        cmocka_unit_test(bits_after_a_norm_do_not_depend_on_shards_and_instructions),
    };
    return cmocka_run_group_tests(tests, make_inputs, remove_folder);
}
