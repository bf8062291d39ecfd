// 4-bit weights as in a gpt-oss checkpoint (MXFP4: E2M1 codes, two per byte, and one E8M0 scale per 32 k). The example packs them,
// multiplies them with bf16 rows, and compares the result with sums in double.
//
//   cc -std=c17 quantised_weights.c $(pkg-config --cflags --libs expertd-kernels) -o quantised_weights && ./quantised_weights
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <expertd/kernels/kernels.h>

enum { EXPERTS = 2, TOKENS = 5, HIDDEN = 128, WIDTH = 96, SCALE_K = 32, SCALES = HIDDEN / SCALE_K, ALIGNMENT = 64, THREADS = 2 };

struct layer {
    uint16_t hidden[TOKENS][HIDDEN];           // bf16
    uint8_t codes[EXPERTS][WIDTH][HIDDEN / 2]; // low nibble first
    uint8_t scales[EXPERTS][WIDTH][SCALES];    // 2^(scale - 127)
    int32_t group_sizes[EXPERTS];
    float out[TOKENS][WIDTH];
};

static const struct expertd_quantised_format MXFP4 = {
    .code = EXPERTD_CODE_E2M1, .scale = EXPERTD_DTYPE_F8_E8M0, .scale_k = SCALE_K};

static void fill(struct layer *layer) {
    const int32_t sizes[EXPERTS] = {3, 2};
    memcpy(layer->group_sizes, sizes, sizeof sizes);
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        (&layer->hidden[0][0])[i] = expertd_bf16_from_f32((float)(i * 7 % 31 - 15) / 16);
    }
    for (int i = 0; i < EXPERTS * WIDTH * HIDDEN / 2; i++) {
        (&layer->codes[0][0][0])[i] = (uint8_t)(i * 37 + i / 64);
    }
    for (int i = 0; i < EXPERTS * WIDTH * SCALES; i++) {
        (&layer->scales[0][0][0])[i] = (uint8_t)(120 + i % 9);
    }
}

static void *memory_of(size_t bytes) {
    void *memory = aligned_alloc(ALIGNMENT, (bytes / ALIGNMENT + 1) * ALIGNMENT);
    if (!memory) {
        abort();
    }
    return memory;
}

// Packs one expert's matrix: WIDTH rows of HIDDEN codes. Strides count codes. Plain rows have no words, so `word` may be
// any power of two.
static EXPERTD_FALLIBLE pack_expert(const struct layer *layer, int expert, void *dst) {
    enum { WORD = 8 };
    struct expertd_quantised_source source = {
        .codes = {.data = layer->codes[expert],
                  .bits = 4,
                  .word = WORD,
                  .n_stride = HIDDEN,
                  .n_word_stride = WORD * HIDDEN,
                  .k_stride = 1,
                  .k_word_stride = WORD},
        .scales = layer->scales[expert],
        .scale_columns = 1,
        .scale_n_stride = SCALES,
        .scale_g_stride = 1,
    };
    return expertd_pack_quantised(&source, &MXFP4, HIDDEN, WIDTH, dst);
}

static EXPERTD_FALLIBLE multiply(struct layer *layer, const struct expertd_packed_weights *packed, struct expertd_team *team) {
    struct expertd_grouped_matmul_args args = {
        .lhs = layer->hidden,
        .lhs_stride = HIDDEN,
        .rhs = expertd_rhs_packed(packed),
        .group_sizes = layer->group_sizes,
        .num_groups = EXPERTS,
        .num_actual_groups = EXPERTS,
        .m = TOKENS,
        .out = layer->out,
        .out_stride = WIDTH,
    };
    void *workspace = memory_of(expertd_grouped_matmul_workspace_bytes(&args, team));
    expertd_err_t e = expertd_grouped_matmul(&args, team, workspace);
    free(workspace);
    return e;
}

static EXPERTD_FALLIBLE run(struct layer *layer, struct expertd_team *team) {
    void *groups[EXPERTS];
    struct expertd_packed_weights packed = {
        .dtype = EXPERTD_DTYPE_BF16, // of the rows that they are multiplied with
        .groups = EXPERTS,
        .k = HIDDEN,
        .n = WIDTH,
        .group_bytes = expertd_quantised_group_bytes(&MXFP4, HIDDEN, WIDTH),
        .data = groups,
        .format = &MXFP4,
    };
    for (int i = 0; i < EXPERTS; i++) {
        groups[i] = memory_of(packed.group_bytes);
    }
    expertd_err_t e = {EXPERTD_ERR_OK};
    for (int i = 0; i < EXPERTS && !expertd_err_is(e); i++) {
        e = pack_expert(layer, i, groups[i]);
    }
    if (!expertd_err_is(e)) {
        e = multiply(layer, &packed, team);
    }
    for (int i = 0; i < EXPERTS; i++) {
        free(groups[i]);
    }
    return e;
}

static double weight(const struct layer *layer, int expert, int n, int k) {
    static const double E2M1[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    int code = layer->codes[expert][n][k / 2] >> k % 2 * 4 & 15, exponent = layer->scales[expert][n][k / SCALE_K] - 127;
    double value = E2M1[code & 7] * (code & 8 ? -1 : 1);
    return exponent < 0 ? value / (1 << -exponent) : value * (1 << exponent);
}

static double greatest_error(const struct layer *layer) {
    double greatest = 0;
    for (int t = 0; t < TOKENS; t++) {
        for (int n = 0; n < WIDTH; n++) {
            double sum = 0;
            for (int k = 0; k < HIDDEN; k++) {
                sum += (double)expertd_f32_from_bf16(layer->hidden[t][k]) * weight(layer, t < layer->group_sizes[0] ? 0 : 1, n, k);
            }
            double error = sum > (double)layer->out[t][n] ? sum - (double)layer->out[t][n] : (double)layer->out[t][n] - sum;
            greatest = error > greatest ? error : greatest;
        }
    }
    return greatest;
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
    double error = greatest_error(&layer);
    printf("kernels %s: out[0][0] = %g, out[4][95] = %g, at most %g from sums in double\n", expertd_kernel_selected_name(),
           (double)layer.out[0][0], (double)layer.out[4][95], error);
    return error <= 1e-4 ? EXIT_SUCCESS : EXIT_FAILURE;
}
