// gpu-fp8 [--device cuda|sim]: products of two operands of E4M3 with block scales (1 x 128 by 128 x 128) by wgmma: is the error
// within the bound that is stated here, are the bits the scalar twin's, and has a row the same ones alone as among others. A GPU
// without wgmma on FP8 has no such kernel, which is said and is no failure. Closes with "N passed, N failed".
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expertd/base/dtype.h"
#include "tests/gpu/fp8_twin.h"
#include "tests/gpu/pieces.h"

enum { GROUPS_MAX = 4, ROWS_MAX = 220, N_MAX = 264, K_MAX = 656, BLOCK = 128 };

static const struct shape {
    int32_t sizes[GROUPS_MAX];
    uint32_t groups, n, k;
} SHAPES[] = {{{128, 0, 70, 5}, 4, 264, 656}, {{1, 1, 1, 1}, 4, 128, 512}, {{70}, 1, 136, 272}};

// Of the sum of an element's products' magnitudes: 13 bits that wgmma keeps below the largest, an error of one in each of the
// instructions that make a sum, and nothing that grows with K beside it, for every 128 k are promoted to fp32. Beside it bf16's own
// rounding of the result.
static const double CUT_OFF = 0x1p-11, ROUNDING = 0x1p-8;

static struct operands {
    uint8_t a[ROWS_MAX * K_MAX], b[GROUPS_MAX * N_MAX * K_MAX];
    float of_a[ROWS_MAX * (K_MAX / BLOCK + 1)], of_b[GROUPS_MAX * (N_MAX / BLOCK + 1) * (K_MAX / BLOCK + 1)];
    uint16_t got[ROWS_MAX * N_MAX], alone[ROWS_MAX * N_MAX], twin[ROWS_MAX * N_MAX];
} o;

static size_t blocks(size_t size) {
    return (size + BLOCK - 1) / BLOCK;
}

static size_t rows_of(const struct shape *s) {
    size_t rows = 0;
    for (uint32_t g = 0; g < s->groups; g++) {
        rows += (size_t)s->sizes[g];
    }
    return rows;
}

static void fill(struct pieces *p, const struct shape *s) {
    for (size_t i = 0; i < sizeof o.a + sizeof o.b; i++) {
        uint8_t code = (uint8_t)pieces_random(p);
        code = (code & 0x7f) == 0x7f ? code ^ 1 : code; // a number
        *(i < sizeof o.a ? &o.a[i] : &o.b[i - sizeof o.a]) = code;
    }
    for (size_t i = 0; i < sizeof o.of_a / sizeof *o.of_a; i++) {
        o.of_a[i] = ldexpf(1.0f + (float)(pieces_random(p) % 1024) / 1024, -(int)(pieces_random(p) % 6));
    }
    for (size_t i = 0; i < s->groups * blocks(s->n) * blocks(s->k); i++) {
        o.of_b[i] = ldexpf(1.0f + (float)(pieces_random(p) % 1024) / 1024, -(int)(pieces_random(p) % 6));
    }
}

// Groups of those sizes, whose rows begin at `first` of the operand, into a poisoned output.
static void multiply(struct pieces *p, const struct shape *s, const int32_t *sizes, size_t first, size_t rows, uint16_t *out) {
    struct expertd_device_error error;
    size_t bytes = rows * s->n * sizeof *out;
    memset(out, 0xff, bytes);
    struct expertd_device_fp8_gemm args = {
        .a = pieces_there(p, o.a + first * s->k, rows * s->k),
        .a_scales = pieces_there(p, o.of_a + first * blocks(s->k), rows * blocks(s->k) * sizeof *o.of_a),
        .b = pieces_there(p, o.b, (size_t)s->groups * s->n * s->k),
        .b_scales = pieces_there(p, o.of_b, s->groups * blocks(s->n) * blocks(s->k) * sizeof *o.of_b),
        .d = pieces_there(p, out, bytes),
        .sizes = pieces_there(p, sizes, s->groups * sizeof *sizes),
        .rows = (uint32_t)rows,
        .groups = s->groups,
        .n = s->n,
        .k = s->k};
    pieces_must(p, p->table->fp8_gemm(p->device, &args, &error), &error);
    pieces_back(p, args.d, bytes, out);
    pieces_drop(p);
}

static uint32_t group_of(const struct shape *s, size_t row) {
    uint32_t group = 0;
    for (size_t end = (size_t)s->sizes[0]; row >= end; end += (size_t)s->sizes[++group]) {
    }
    return group;
}

// The greatest error of an element as a share of what is allowed.
static double worst_error(const struct shape *s) {
    double worst = 0;
    for (size_t row = 0; row < rows_of(s); row++) {
        uint32_t group = group_of(s, row);
        for (size_t n = 0; n < s->n; n++) {
            double want = 0, magnitude = 0;
            for (size_t k = 0; k < s->k; k++) {
                double scale = (double)o.of_a[row * blocks(s->k) + k / BLOCK] *
                               (double)o.of_b[(group * blocks(s->n) + n / BLOCK) * blocks(s->k) + k / BLOCK];
                double product = (double)expertd_f32_from_e4m3(o.a[row * s->k + k]) *
                                 (double)expertd_f32_from_e4m3(o.b[((size_t)group * s->n + n) * s->k + k]) * scale;
                want += product;
                magnitude += fabs(product);
            }
            double error =
                fabs((double)expertd_f32_from_bf16(o.got[row * s->n + n]) - want) / (magnitude * CUT_OFF + fabs(want) * ROUNDING);
            worst = error > worst || isnan(error) ? error : worst;
        }
    }
    return worst;
}

static size_t unlike_the_twin(const struct shape *s) {
    size_t rows = rows_of(s), unlike = 0;
    fp8_twin(&(struct expertd_device_fp8_gemm){.a = o.a,
                                               .a_scales = o.of_a,
                                               .b = o.b,
                                               .b_scales = o.of_b,
                                               .sizes = s->sizes,
                                               .groups = s->groups,
                                               .n = s->n,
                                               .k = s->k},
             o.twin);
    for (size_t i = 0; i < rows * s->n; i++) {
        unlike += o.got[i] != o.twin[i];
    }
    return unlike;
}

// The last row of each group by itself.
static size_t unlike_alone(struct pieces *p, const struct shape *s) {
    size_t unlike = 0, end = 0;
    for (uint32_t g = 0; g < s->groups; g++) {
        int32_t one[GROUPS_MAX] = {0};
        end += (size_t)s->sizes[g];
        if (s->sizes[g] > 0) {
            one[g] = 1;
            multiply(p, s, one, end - 1, 1, o.alone);
            unlike += memcmp(o.alone, o.got + (end - 1) * s->n, s->n * sizeof *o.got) != 0;
        }
    }
    return unlike;
}

int main(int argc, char **argv) {
    struct pieces p;
    int passed = 0, failed = 0;
    pieces_open(&p, "gpu-fp8", argc, argv);
    if (!(p.devices->facts.bf16.has >> EXPERTD_DEVICE_WGMMA_128 & 1)) {
        printf("%s has no wgmma, so no kernel of FP8 by FP8: nothing to check\n0 passed, 0 failed\n", p.devices->facts.name);
        return 0;
    }
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        const struct shape *s = &SHAPES[i];
        fill(&p, s);
        multiply(&p, s, s->sizes, 0, rows_of(s), o.got);
        size_t twin = unlike_the_twin(s), alone = unlike_alone(&p, s);
        double worst = worst_error(s);
        printf("%zu rows, n %u, k %u: worst error %.3f of what is allowed; of %zu outputs %zu unlike the twin; %zu rows unlike "
               "themselves alone\n",
               rows_of(s), s->n, s->k, worst, rows_of(s) * s->n, twin, alone);
        bool good = worst <= 1.0 && alone == 0 && twin == 0;
        *(good ? &passed : &failed) += 1;
    }
    pieces_close(&p);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
