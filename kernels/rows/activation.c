#include "expertd/kernels/activation.h"

#include "kernels/cpu/backend/backend.h"
#include "kernels/cpu/common/float_mode.h"

void expertd_activation_row(const struct expertd_activation_args *args) {
    float_mode before = float_mode_set_ieee();
    kernel_selected()->activation(args);
    float_mode_restore(before);
}
