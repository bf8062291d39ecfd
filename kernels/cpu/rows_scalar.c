#define ROW_TARGET(name) scalar_##name
#include "kernels/cpu/row_body.h"
