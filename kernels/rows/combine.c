#include "expertd/kernels/combine.h"

#include "kernels/cpu/backend/backend.h"
#include "kernels/cpu/common/float_mode.h"

void expertd_combine_row(const struct expertd_combine_args *args) {
    float_mode before = float_mode_set_ieee();
    kernel_selected()->combine(args);
    float_mode_restore(before);
}
