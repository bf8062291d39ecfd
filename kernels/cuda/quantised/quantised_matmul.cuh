// The arguments of a product with quantised weights, as its kernels take them.
#ifndef EXPERTD_KERNELS_CUDA_QUANTISED_QUANTISED_MATMUL_CUH
#define EXPERTD_KERNELS_CUDA_QUANTISED_QUANTISED_MATMUL_CUH

#include "expertd/kernels/device.h"
#include "kernels/cuda/quantised/quantised_codes.cuh"
#include "kernels/device/device_codes.h"

namespace {

struct quantised_operand {
    const unsigned char *codes, *scales;
    const uint8_t *zeros; // NULL: none
    const float *globals; // NULL: none
};

struct quantised_product {
    const void *rows;
    size_t stride;         // bytes
    const uint32_t *index; // or NULL
    const uint32_t *order; // or NULL
    const expertd_device_tile *tile_list;
    quantised_operand operands[2];
    expertd_weight_code code;
    enum expertd_dtype scale;
    enum expertd_global_scale global;
    int scale_of_panel, scale_size; // scale_size: bytes of a stored scale
    int span;                       // k per scale; more than K: one scale for all of K
    int span_shift;                 // log2 of span, or -1 if span is no power of two
    int scales, units, tiles;       // scales along K, units of codes along K, tiles of 16 columns in a group
    int n, k;
    uint32_t rows_all;
};

// The size of a scale's dtype: 1, 2 or 4. expertd_dtype_size is not part of the module.
inline int scale_bytes(enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_F32 ? 4 : dtype == EXPERTD_DTYPE_BF16 || dtype == EXPERTD_DTYPE_F16 ? 2 : 1;
}

inline quantised_operand quantised_operand_of(const expertd_device_matrix &m) {
    return {(const unsigned char *)m.data, (const unsigned char *)m.quantised.scales, m.quantised.zeros, m.quantised.globals};
}

// second.data NULL: one operand. False: the formats or dimensions of the two operands differ.
inline bool quantised_product_of(const expertd_device_rows &rows, const expertd_device_matrix &first,
                                 const expertd_device_matrix &second, quantised_product *out) {
    const expertd_quantised_format &f = first.quantised.format, &g = second.quantised.format;
    const bool alike = f.code == g.code && f.scale == g.scale && f.global == g.global && f.zero_points == g.zero_points &&
                       f.scale_of_panel == g.scale_of_panel && f.scale_k == g.scale_k && first.n == second.n &&
                       first.k == second.k && first.quantised.order == second.quantised.order;
    if (second.data && !alike) {
        return false;
    }
    *out = {};
    out->rows = rows.data;
    out->stride = rows.stride;
    out->index = rows.index;
    out->rows_all = rows.rows;
    out->tile_list = rows.tiles;
    out->order = first.quantised.order;
    out->code = f.code;
    out->scale = f.scale;
    out->global = f.global;
    out->operands[0] = quantised_operand_of(first);
    out->operands[1] = quantised_operand_of(second);
    out->scale_of_panel = f.scale_of_panel;
    out->scale_size = scale_bytes(f.scale);
    out->span = f.scale_k ? (int)f.scale_k : (int)(first.k / 16 + 1) * 16; // a multiple of 16 above K
    out->span_shift = -1;
    for (int shift = 4; shift < 31; shift++) {
        out->span_shift = out->span == 1 << shift ? shift : out->span_shift;
    }
    out->scales = (int)device_codes_scales(&f, first.k);
    out->units = (int)device_codes_units(f.code, first.k);
    out->tiles = (int)device_codes_tiles(first.n);
    out->n = (int)first.n;
    out->k = (int)first.k;
    return true;
}

// Fills the table of the values of a group's F8_E4M3 scales. All threads of the block call it, and the block synchronises before
// the table is read.
template <int OPERANDS>
__device__ __forceinline__ void fill_e4m3_table(const quantised_product &p, uint32_t group, float (&table)[OPERANDS][256]) {
    if (p.scale == EXPERTD_DTYPE_F8_E4M3 && !p.scale_of_panel) {
        for (int i = threadIdx.x; i < OPERANDS * 256; i += blockDim.x) {
            const float *globals = p.operands[i / 256].globals;
            table[i / 256][i % 256] = e4m3_scale(i % 256, p.global, globals ? globals[group] : 1.0f);
        }
    }
}

} // namespace

#endif
