// gpu-fp8 [--device cuda|sim]: checks products of two E4M3 operands with block scales (1 x 128 by 128 x 128) by wgmma. Is the error
// within the bound below, are the bits those of the scalar twin, and has a row the same bits alone as among others? A GPU without
// wgmma on FP8 has no such kernel; that is reported and is no failure. The last line is "N passed, N failed".
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

// The allowed error, relative to the sum of the magnitudes of an element's products: wgmma keeps 13 bits below the largest product,
// with an error of one unit for each of the instructions of a partial sum. It does not grow with K, since every 128 k are promoted
// to fp32. ROUNDING is bf16's rounding of the result.
static const double CUT_OFF = 0x1p-11, ROUNDING = 0x1p-8;

static struct operands {
    uint8_t a[ROWS_MAX * K_MAX], b[GROUPS_MAX * N_MAX * K_MAX];
    float a_scales[ROWS_MAX * (K_MAX / BLOCK + 1)], b_scales[GROUPS_MAX * (N_MAX / BLOCK + 1) * (K_MAX / BLOCK + 1)];
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
        code = (code & 0x7f) == 0x7f ? code ^ 1 : code; // not NaN
        *(i < sizeof o.a ? &o.a[i] : &o.b[i - sizeof o.a]) = code;
    }
    for (size_t i = 0; i < sizeof o.a_scales / sizeof *o.a_scales; i++) {
        o.a_scales[i] = ldexpf(1.0f + (float)(pieces_random(p) % 1024) / 1024, -(int)(pieces_random(p) % 6));
    }
    for (size_t i = 0; i < s->groups * blocks(s->n) * blocks(s->k); i++) {
        o.b_scales[i] = ldexpf(1.0f + (float)(pieces_random(p) % 1024) / 1024, -(int)(pieces_random(p) % 6));
    }
}

// Multiplies groups of these sizes, whose rows begin at row `first` of the operand, into a poisoned output.
static void multiply(struct pieces *p, const struct shape *s, const int32_t *sizes, size_t first, size_t rows, uint16_t *out) {
    struct expertd_device_error error;
    size_t bytes = rows * s->n * sizeof *out;
    memset(out, 0xff, bytes);
    struct expertd_device_fp8_gemm args = {
        .a = pieces_upload(p, o.a + first * s->k, rows * s->k),
        .a_scales = pieces_upload(p, o.a_scales + first * blocks(s->k), rows * blocks(s->k) * sizeof *o.a_scales),
        .b = pieces_upload(p, o.b, (size_t)s->groups * s->n * s->k),
        .b_scales = pieces_upload(p, o.b_scales, s->groups * blocks(s->n) * blocks(s->k) * sizeof *o.b_scales),
        .d = pieces_upload(p, out, bytes),
        .sizes = pieces_upload(p, sizes, s->groups * sizeof *sizes),
        .rows = (uint32_t)rows,
        .groups = s->groups,
        .n = s->n,
        .k = s->k};
    pieces_must(p, p->table->fp8_gemm(p->device, &args, &error), &error);
    pieces_download(p, args.d, bytes, out);
    pieces_drop(p);
}

static uint32_t group_of(const struct shape *s, size_t row) {
    uint32_t group = 0;
    for (size_t end = (size_t)s->sizes[0]; row >= end; end += (size_t)s->sizes[++group]) {
    }
    return group;
}

// The largest error of an element divided by the allowed error.
static double worst_error(const struct shape *s) {
    double worst = 0;
    for (size_t row = 0; row < rows_of(s); row++) {
        uint32_t group = group_of(s, row);
        for (size_t n = 0; n < s->n; n++) {
            double exact = 0, magnitude = 0;
            for (size_t k = 0; k < s->k; k++) {
                double scale = (double)o.a_scales[row * blocks(s->k) + k / BLOCK] *
                               (double)o.b_scales[(group * blocks(s->n) + n / BLOCK) * blocks(s->k) + k / BLOCK];
                double product = (double)expertd_f32_from_e4m3(o.a[row * s->k + k]) *
                                 (double)expertd_f32_from_e4m3(o.b[((size_t)group * s->n + n) * s->k + k]) * scale;
                exact += product;
                magnitude += fabs(product);
            }
            double error =
                fabs((double)expertd_f32_from_bf16(o.got[row * s->n + n]) - exact) / (magnitude * CUT_OFF + fabs(exact) * ROUNDING);
            worst = error > worst || isnan(error) ? error : worst;
        }
    }
    return worst;
}

static size_t count_unlike_twin(const struct shape *s) {
    size_t rows = rows_of(s), unlike = 0;
    fp8_twin(&(struct expertd_device_fp8_gemm){.a = o.a,
                                               .a_scales = o.a_scales,
                                               .b = o.b,
                                               .b_scales = o.b_scales,
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

// Computes the last row of each group alone. Returns the number of rows with other bits than among others.
static size_t count_unlike_alone(struct pieces *p, const struct shape *s) {
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
        printf("%s has no wgmma, so it has no kernel for FP8 by FP8: nothing to check\n0 passed, 0 failed\n",
               p.devices->facts.name);
        return 0;
    }
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        const struct shape *s = &SHAPES[i];
        fill(&p, s);
        multiply(&p, s, s->sizes, 0, rows_of(s), o.got);
        size_t twin = count_unlike_twin(s), alone = count_unlike_alone(&p, s);
        double worst = worst_error(s);
        printf("%zu rows, n %u, k %u: worst error %.3f of the allowed error; of %zu outputs %zu differ from the twin; %zu rows "
               "differ when "
               "computed alone\n",
               rows_of(s), s->n, s->k, worst, rows_of(s) * s->n, twin, alone);
        bool good = worst <= 1.0 && alone == 0 && twin == 0;
        *(good ? &passed : &failed) += 1;
    }
    pieces_close(&p);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
