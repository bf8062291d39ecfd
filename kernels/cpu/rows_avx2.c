#if defined(__x86_64__)
#define ROW_TARGET(name) avx2_##name
#include "kernels/cpu/row_body.h"
#endif
