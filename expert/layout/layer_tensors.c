#include "expert/layout/layer_tensors.h"

#include <stdlib.h>

void layer_tensors_free(struct layer_tensors *layers, size_t count) {
    for (size_t i = 0; layers && i < count; i++) {
        free(layers[i].experts);
    }
    free(layers);
}
