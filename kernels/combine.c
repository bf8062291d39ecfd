#include "kernels/combine.h"

#include "kernels/backend.h"

void combine_row(const struct combine_args *args) {
    kernel_selected()->combine(args);
}
