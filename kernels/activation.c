#include "kernels/activation.h"

#include "kernels/backend.h"

void activation_row(const struct activation_args *args) {
    kernel_selected()->activation(args);
}
