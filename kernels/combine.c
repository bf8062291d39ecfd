#include "kernels/combine.h"

#include "kernels/backend.h"
#include "kernels/cpu/float_mode.h"

void combine_row(const struct combine_args *args) {
    float_mode before = float_mode_set_ieee();
    kernel_selected()->combine(args);
    float_mode_restore(before);
}
