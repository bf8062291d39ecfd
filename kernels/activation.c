#include "kernels/activation.h"

#include "kernels/backend.h"
#include "kernels/cpu/float_mode.h"

void activation_row(const struct activation_args *args) {
    float_mode before = float_mode_set_ieee();
    kernel_selected()->activation(args);
    float_mode_restore(before);
}
