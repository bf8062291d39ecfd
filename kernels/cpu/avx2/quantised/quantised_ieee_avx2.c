// The decoder of each kind of code.
#if defined(__x86_64__)
#include "kernels/cpu/avx2/quantised/quantised_ieee.h"

const struct ieee_decoder *ieee_decoder_of(const struct expertd_quantised_format *format) {
    switch (format->code) {
    case EXPERTD_CODE_E4M3:
        return &ieee_e4m3;
    case EXPERTD_CODE_E5M2:
        return &ieee_e5m2;
    case EXPERTD_CODE_E2M1:
        return &ieee_e2m1;
    case EXPERTD_CODE_INT4:
        return &ieee_int4;
    case EXPERTD_CODE_UINT4:
        return &ieee_uint4;
    case EXPERTD_CODE_IQ4:
        return &ieee_iq4;
    default:
        return format->zero_points ? &ieee_int8_zero_point : &ieee_int8;
    }
}
#endif
