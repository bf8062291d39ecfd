// The decoder of each kind of code.
#if defined(__x86_64__)
#include "kernels/cpu/avx512/quantised_pairs/quantised_pairs.h"

const struct pairs_decoder *pairs_decoder_of(const struct expertd_quantised_format *format) {
    switch (format->code) {
    case EXPERTD_CODE_E4M3:
    case EXPERTD_CODE_E5M2:
        return &pairs_float8;
    case EXPERTD_CODE_INT8:
        return format->zero_points ? &pairs_int8_zero_point : &pairs_int8;
    default:
        return format->zero_points ? &pairs_nibble_zero_point : &pairs_nibble;
    }
}
#endif
