// Packs F32 and BF16 weights. A panel is 64 columns of the product (rows of W) over the whole of K; panels are contiguous.
//   F32:  [n / 64][k][64]; slices [n / 64][4][k][16], wide slices [n / 64][2][k][32]
//   BF16: [n / 64][ceil(k / 2)][64][2], the pair (2i, 2i + 1) of a column in one 32-bit word; an odd k is padded with +0
//         slices [n / 64][4][ceil(k / 2)][16][2], wide slices [n / 64][2][ceil(k / 2)][32][2]
//   I8:   [n / 64] of struct packed_i8 (packed_i8.h)
// A short last panel is padded with columns of +0. Elements of the packed dtype that are contiguous along K or n are packed
// straight from the source (pack.h). Others are converted first, in runs along the axis with the smaller stride. If that is K, a
// run of each of 64 rows is staged in L1 and transposed there, while the next run is prefetched: 64 streams are more than the
// hardware prefetcher follows.
#include "expertd/kernels/weights.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "base/sizes.h"
#include "kernels/cpu/backend/backend.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/cpu/common/nontemporal_store.h"
#include "kernels/cpu/common/prefetch_distance.h"
#include "kernels/layout/pack.h"
#include "kernels/layout/packed_i8.h"
#include "kernels/layout/packed_layout.h"
#include "kernels/rows/convert.h"

enum { RUN_K = 128 }; // k of a run: 64 rows of 128 floats are 32 KiB. Even, so that no pair is split between runs

size_t expertd_packed_group_bytes(enum expertd_dtype dtype, size_t k, size_t n) {
    const size_t word_k = dtype == EXPERTD_DTYPE_I8 ? PACKED_I8_K : dtype == EXPERTD_DTYPE_BF16 ? 2 : 1; // k of a word
    size_t panel = size_times(size_times(div_up(k, word_k), word_k), EXPERTD_KERNEL_PANEL * expertd_dtype_size(dtype));
    if (dtype == EXPERTD_DTYPE_I8) {
        panel = size_plus(panel, sizeof(struct packed_i8));
    }
    return size_times(div_up(n, EXPERTD_KERNEL_PANEL), panel);
}

// One block of W: `columns` columns, at most a panel's, by `depth` k, at most a run.
struct block {
    const struct expertd_weight_source *source;
    const uint8_t *origin; // its first element
    size_t columns, depth;
    enum expertd_dtype dtype; // the packed dtype
};

// Copies `count` elements of `size` bytes, `stride` elements apart.
static void gather(const uint8_t *src, size_t size, size_t stride, size_t count, void *dst) {
    if (stride == 1) {
        memcpy(dst, src, count * size);
    } else if (size == 2) {
        for (size_t i = 0; i < count; i++) {
            memcpy((uint16_t *)dst + i, src + 2 * i * stride, 2);
        }
    } else {
        for (size_t i = 0; i < count; i++) {
            memcpy((uint32_t *)dst + i, src + 4 * i * stride, 4);
        }
    }
}

// Copies or converts `count` elements, `stride` elements apart; one rounding each where `to` is BF16.
static void read_run(enum expertd_dtype from, const uint8_t *src, size_t stride, size_t count, enum expertd_dtype to, void *dst) {
    if (from == to) {
        gather(src, expertd_dtype_size(from), stride, count, dst);
        return;
    }
    uint32_t raw[RUN_K];
    float wide[RUN_K];
    gather(src, expertd_dtype_size(from), stride, count, raw);
    if (to == EXPERTD_DTYPE_F32) {
        convert_widen(from, raw, count, dst);
        return;
    }
    convert_widen(from, raw, count, wide);
    convert_narrow(wide, count, to, dst);
}

static void prefetch_next_run(const uint8_t *run, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) {
        __builtin_prefetch((const void *)((uintptr_t)run + bytes + at));
    }
}

// Packs a block whose smaller stride is that of K: runs along K, a column at a time.
static void pack_block_along_k(const struct block *b, uint8_t *panel) {
    _Alignas(64) uint32_t columns[EXPERTD_KERNEL_PANEL][RUN_K];
    const struct expertd_weight_source *s = b->source;
    size_t size = expertd_dtype_size(s->dtype);
    for (size_t c = 0; c < b->columns; c++) {
        const uint8_t *run = b->origin + c * s->n_stride * size;
        prefetch_next_run(run, b->depth * s->k_stride * size);
        read_run(s->dtype, run, s->k_stride, b->depth, b->dtype, columns[c]);
    }
    struct pack_args args = {.src = columns,
                             .stride = sizeof *columns,
                             .element = expertd_dtype_size(b->dtype),
                             .lines = b->columns,
                             .k = b->depth,
                             .panels = panel,
                             .panel_bytes = expertd_packed_group_bytes(b->dtype, b->depth, EXPERTD_KERNEL_PANEL)};
    kernel_selected()->pack_k_major(&args);
}

// Packs a block whose smaller stride is that of n: runs along n, a k at a time.
static void pack_block_along_n(const struct block *b, uint8_t *panel) {
    const struct expertd_weight_source *s = b->source;
    size_t row_bytes = s->k_stride * expertd_dtype_size(s->dtype);
    if (b->dtype == EXPERTD_DTYPE_F32) {
        for (size_t k = 0; k < b->depth; k++) {
            float *row = (float *)panel + k * EXPERTD_KERNEL_PANEL;
            read_run(s->dtype, b->origin + k * row_bytes, s->n_stride, b->columns, EXPERTD_DTYPE_F32, row);
        }
        return;
    }
    uint16_t even[EXPERTD_KERNEL_PANEL] = {0}, odd[EXPERTD_KERNEL_PANEL] = {0}, *out = (uint16_t *)panel;
    for (size_t k = 0; k < b->depth; k += 2, out += 2 * EXPERTD_KERNEL_PANEL) {
        read_run(s->dtype, b->origin + k * row_bytes, s->n_stride, b->columns, EXPERTD_DTYPE_BF16, even);
        if (k + 1 < b->depth) {
            read_run(s->dtype, b->origin + (k + 1) * row_bytes, s->n_stride, b->columns, EXPERTD_DTYPE_BF16, odd);
        } else {
            memset(odd, 0, sizeof odd);
        }
        for (size_t c = 0; c < EXPERTD_KERNEL_PANEL; c++) {
            out[2 * c] = even[c];
            out[2 * c + 1] = odd[c];
        }
    }
}

// Packs straight from a source that needs no conversion. False if neither axis is contiguous.
static bool pack_directly(const struct kernel_backend *backend, const struct expertd_weight_source *source,
                          struct pack_args *args) {
    if (source->k_stride != 1 && source->n_stride != 1) {
        return false;
    }
    bool k_major = source->k_stride == 1;
    args->src = source->data;
    args->element = expertd_dtype_size(source->dtype);
    args->stride = (k_major ? source->n_stride : source->k_stride) * args->element;
    (k_major ? backend->pack_k_major : backend->pack_n_major)(args);
    return true;
}

static void pack_blocks(const struct expertd_weight_source *source, const struct pack_args *args, enum expertd_dtype dtype) {
    size_t size = expertd_dtype_size(source->dtype);
    for (size_t n0 = 0; n0 < args->lines; n0 += EXPERTD_KERNEL_PANEL) {
        uint8_t *panel = (uint8_t *)args->panels + n0 / EXPERTD_KERNEL_PANEL * args->panel_bytes;
        for (size_t k0 = 0; k0 < args->k; k0 += RUN_K) {
            struct block block = {
                .source = source,
                .origin = (const uint8_t *)source->data + (n0 * source->n_stride + k0 * source->k_stride) * size,
                .columns = args->lines - n0 < EXPERTD_KERNEL_PANEL ? args->lines - n0 : EXPERTD_KERNEL_PANEL,
                .depth = args->k - k0 < RUN_K ? args->k - k0 : RUN_K,
                .dtype = dtype,
            };
            uint8_t *at = panel + k0 * EXPERTD_KERNEL_PANEL * expertd_dtype_size(dtype);
            if (source->k_stride <= source->n_stride) {
                pack_block_along_k(&block, at);
            } else {
                pack_block_along_n(&block, at);
            }
        }
    }
}

// Clears a short last panel, for its padding columns.
static void clear_last_panel(const struct pack_args *args) {
    if (args->lines % EXPERTD_KERNEL_PANEL) {
        memset((uint8_t *)args->panels + args->lines / EXPERTD_KERNEL_PANEL * args->panel_bytes, 0, args->panel_bytes);
    }
}

static void pack_panels(const struct expertd_weight_source *source, size_t k, size_t n, enum expertd_dtype dtype, void *dst) {
    struct pack_args args = {
        .lines = n, .k = k, .panels = dst, .panel_bytes = expertd_packed_group_bytes(dtype, k, EXPERTD_KERNEL_PANEL)};
    clear_last_panel(&args);
    if (source->dtype != dtype || !pack_directly(kernel_selected(), source, &args)) {
        pack_blocks(source, &args, dtype);
    }
}

// Packs slices, RUN_K k at a time: into a panel in L1, and from there by non-temporal stores, since memory traffic limits packing.
static void pack_slices(const struct expertd_weight_source *source, size_t k, size_t n, enum expertd_dtype dtype,
                        enum expertd_packed_layout layout, char *dst) {
    _Alignas(64) uint32_t run[RUN_K][EXPERTD_KERNEL_PANEL];
    const size_t size = expertd_dtype_size(dtype), word_k = sizeof **run / size, words = div_up(k, word_k);
    const size_t source_size = expertd_dtype_size(source->dtype), slice_columns = packed_columns(layout);
    for (size_t n0 = 0; n0 < n; n0 += EXPERTD_KERNEL_PANEL, dst += words * sizeof *run) {
        for (size_t k0 = 0; k0 < k; k0 += RUN_K) {
            struct expertd_weight_source part = *source;
            part.data = (const char *)source->data + (n0 * source->n_stride + k0 * source->k_stride) * source_size;
            size_t depth = k - k0 < RUN_K ? k - k0 : RUN_K, columns = n - n0 < EXPERTD_KERNEL_PANEL ? n - n0 : EXPERTD_KERNEL_PANEL;
            pack_panels(&part, depth, columns, dtype, run);
            for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += slice_columns) {
                char *slice = dst + packed_word_at(layout, words, k0 / word_k, column) * sizeof **run;
                for (size_t word = 0; word < div_up(depth, word_k); word++, slice += slice_columns * sizeof **run) {
                    stream_bytes(slice, run[word] + column, slice_columns * sizeof **run);
                }
            }
        }
    }
    stream_end();
}

// clang 14 spills the sums of AVX2's slice tiles of five and six rows to memory, gcc 12 does not; so a clang build uses panels.
#if defined(__clang__)
#define AVX2_READS_BEST EXPERTD_PACKED_PANELS
#else
#define AVX2_READS_BEST EXPERTD_PACKED_SLICES
#endif

enum expertd_packed_layout expertd_packed_layout_best(enum expertd_dtype dtype) {
    enum expertd_packed_layout best = prefetch_as_zen5()   ? EXPERTD_PACKED_WIDE_SLICES
                                      : prefetch_as_zen4() ? EXPERTD_PACKED_SLICES
                                      : prefetch_as_zen3() ? AVX2_READS_BEST
                                                           : EXPERTD_PACKED_PANELS;
    return expertd_packed_layout_is_read(dtype, best) ? best : EXPERTD_PACKED_PANELS;
}

const char *expertd_packed_layout_name(enum expertd_packed_layout layout) {
    static const char *const NAMES[EXPERTD_PACKED_LAYOUTS] = {"panels", "slices", "wide-slices"};
    INVARIANT(layout < EXPERTD_PACKED_LAYOUTS);
    return NAMES[layout];
}

bool expertd_packed_layout_is_read(enum expertd_dtype dtype, enum expertd_packed_layout layout) {
    return layout == EXPERTD_PACKED_PANELS ||
           (layout < EXPERTD_PACKED_LAYOUTS && backend_kernels(kernel_selected(), dtype)->slices[layout].macrokernel);
}

void expertd_pack_weights(const struct expertd_weight_source *source, size_t k, size_t n, enum expertd_dtype dtype,
                          enum expertd_packed_layout layout, void *dst) {
    if (dtype == EXPERTD_DTYPE_I8) {
        INVARIANT(layout == EXPERTD_PACKED_PANELS);
        pack_weights_i8(kernel_selected(), source, k, n, dst);
        return;
    }
    INVARIANT(expertd_dtype_is_float16_or_32(source->dtype) && (dtype == EXPERTD_DTYPE_F32 || dtype == EXPERTD_DTYPE_BF16));
    float_mode before = float_mode_set_ieee(); // conversions see NaN, and the caller may have exceptions unmasked
    if (layout == EXPERTD_PACKED_PANELS) {
        pack_panels(source, k, n, dtype, dst);
    } else {
        pack_slices(source, k, n, dtype, layout, dst);
    }
    float_mode_restore(before);
}

void expertd_unpack_weights(const struct expertd_packed_weights *packed, size_t group, void *dst) {
    INVARIANT(!packed->format && (packed->dtype == EXPERTD_DTYPE_F32 || packed->dtype == EXPERTD_DTYPE_BF16));
    const size_t word_k = packed->dtype == EXPERTD_DTYPE_F32 ? 1 : 2, words = div_up(packed->k, word_k);
    const void *data = packed->data[group];
    for (size_t n = 0; n < packed->n; n++) {
        for (size_t k = 0; k < packed->k; k++) {
            size_t at = packed_word_at(packed->layout, words, k / word_k, n);
            if (packed->dtype == EXPERTD_DTYPE_F32) {
                ((float *)dst)[n * packed->k + k] = ((const float *)data)[at];
            } else {
                ((uint16_t *)dst)[n * packed->k + k] = ((const uint16_t *)data)[2 * at + k % 2];
            }
        }
    }
}
