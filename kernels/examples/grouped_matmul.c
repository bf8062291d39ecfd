// Three experts and ten tokens, sorted by expert: the grouped matmul on plain weights, then on packed weights, then the gradient of
// the weights.
//
//   cc -std=c17 grouped_matmul.c $(pkg-config --cflags --libs expertd-kernels) -o grouped_matmul && ./grouped_matmul
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <expertd/kernels/kernels.h>

enum { EXPERTS = 3, TOKENS = 10, HIDDEN = 100, WIDTH = 70, THREADS = 2, ALIGNMENT = 64 };

struct layer {
    float hidden[TOKENS][HIDDEN];
    float weights[EXPERTS][HIDDEN][WIDTH]; // [experts, k, n], a layout of many checkpoints
    int32_t group_sizes[EXPERTS];
    float out[TOKENS][WIDTH], packed_out[TOKENS][WIDTH];
    float gradient[EXPERTS][HIDDEN][WIDTH];
};

static void fill(struct layer *layer) {
    const int32_t sizes[EXPERTS] = {4, 0, 6}; // an expert may have no token
    memcpy(layer->group_sizes, sizes, sizeof sizes);
    float *hidden = &layer->hidden[0][0], *weights = &layer->weights[0][0][0];
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        hidden[i] = (float)(i % 17 - 8) / 16;
    }
    for (int i = 0; i < EXPERTS * HIDDEN * WIDTH; i++) {
        weights[i] = (float)(i % 23 - 11) / 32;
    }
}

static void *workspace_of(size_t bytes) {
    void *memory = aligned_alloc(ALIGNMENT, (bytes / ALIGNMENT + 1) * ALIGNMENT);
    if (!memory) {
        abort();
    }
    return memory;
}

static struct expertd_grouped_matmul_args product_of(struct layer *layer, struct expertd_matmul_rhs rhs, float *out) {
    return (struct expertd_grouped_matmul_args){
        .lhs = layer->hidden,
        .lhs_stride = HIDDEN,
        .rhs = rhs,
        .group_sizes = layer->group_sizes,
        .num_groups = EXPERTS,
        .num_actual_groups = EXPERTS,
        .m = TOKENS,
        .out = out,
        .out_stride = WIDTH,
    };
}

static EXPERTD_FALLIBLE multiply(const struct expertd_grouped_matmul_args *args, struct expertd_team *team) {
    void *workspace = workspace_of(expertd_grouped_matmul_workspace_bytes(args, team));
    expertd_err_t e = expertd_grouped_matmul(args, team, workspace);
    free(workspace);
    return e;
}

static EXPERTD_FALLIBLE multiply_plain(struct layer *layer, struct expertd_team *team) {
    struct expertd_plain_weights plain = {
        .dtype = EXPERTD_DTYPE_F32, .groups = EXPERTS, .k = HIDDEN, .n = WIDTH, .data = layer->weights};
    struct expertd_grouped_matmul_args args = product_of(layer, expertd_rhs_plain(&plain), &layer->out[0][0]);
    return multiply(&args, team);
}

// A server packs weights once and multiplies them often.
static EXPERTD_FALLIBLE multiply_packed(struct layer *layer, struct expertd_team *team) {
    void *groups[EXPERTS];
    struct expertd_packed_weights packed = {
        .dtype = EXPERTD_DTYPE_F32,
        .groups = EXPERTS,
        .k = HIDDEN,
        .n = WIDTH,
        .group_bytes = expertd_packed_group_bytes(EXPERTD_DTYPE_F32, HIDDEN, WIDTH),
        .data = groups,
        .layout = expertd_packed_layout_best(EXPERTD_DTYPE_F32),
    };
    for (int e = 0; e < EXPERTS; e++) {
        struct expertd_weight_source source = {layer->weights[e], EXPERTD_DTYPE_F32, 1, WIDTH};
        groups[e] = workspace_of(packed.group_bytes);
        expertd_pack_weights(&source, HIDDEN, WIDTH, EXPERTD_DTYPE_F32, packed.layout, groups[e]);
    }
    struct expertd_grouped_matmul_args args = product_of(layer, expertd_rhs_packed(&packed), &layer->packed_out[0][0]);
    expertd_err_t e = multiply(&args, team);
    for (int i = 0; i < EXPERTS; i++) {
        free(groups[i]);
    }
    return e;
}

// hidden^T @ out for each expert's rows. The operation's lhs is [k, m]; `hidden` is stored as [m, k], hence lhs_transposed.
static EXPERTD_FALLIBLE multiply_transposed(struct layer *layer, struct expertd_team *team) {
    struct expertd_transposed_grouped_matmul_args args = {
        .lhs = layer->hidden,
        .lhs_transposed = true,
        .rhs = layer->out,
        .lhs_dtype = EXPERTD_DTYPE_F32,
        .rhs_dtype = EXPERTD_DTYPE_F32,
        .k = HIDDEN,
        .m = TOKENS,
        .n = WIDTH,
        .group_sizes = layer->group_sizes,
        .num_groups = EXPERTS,
        .num_actual_groups = EXPERTS,
        .out = layer->gradient,
    };
    void *workspace = workspace_of(expertd_transposed_grouped_matmul_workspace_bytes(&args, team));
    expertd_err_t e = expertd_transposed_grouped_matmul(&args, team, workspace);
    free(workspace);
    return e;
}

static EXPERTD_FALLIBLE run(struct layer *layer, struct expertd_team *team) {
    EXPERTD_TRY(multiply_plain(layer, team));
    EXPERTD_TRY(multiply_packed(layer, team));
    return multiply_transposed(layer, team);
}

int main(void) {
    static struct layer layer;
    struct expertd_team *team = NULL;
    fill(&layer);
    expertd_err_t e = expertd_team_create(&(struct expertd_team_options){THREADS, 50}, &team);
    if (!expertd_err_is(e)) {
        e = run(&layer, team);
    }
    expertd_team_destroy(team);
    if (expertd_err_is(e)) {
        fprintf(stderr, "%s: %s\n", expertd_err_name(e.code), expertd_err_message());
        return EXIT_FAILURE;
    }
    bool same = memcmp(layer.out, layer.packed_out, sizeof layer.out) == 0;
    printf("kernels %s: out[0][0] = %g, out[9][69] = %g, gradient of the empty expert = %g, packed weights give %s bits\n",
           expertd_kernel_selected_name(), (double)layer.out[0][0], (double)layer.out[9][69], (double)layer.gradient[1][0][0],
           same ? "equal" : "other");
    return same ? EXIT_SUCCESS : EXIT_FAILURE;
}
