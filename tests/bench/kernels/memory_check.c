#include "tests/bench/kernels/memory_check.h"

#include "expert/model/memory.h"
#include "tests/bench/kernels/plain_product.h"
#include "tests/bench/kernels/product.h"

FALLIBLE check_memory(const struct selection *s) {
    struct memory_limit limit;
    TRY(memory_available(&limit));
    for (size_t i = 0; i < s->num_shapes; i++) {
        for (size_t d = 0; d < s->num_dtypes; d++) {
            uint64_t needed = s->op == OP_GMM ? product_bytes(s->shapes[i], s->dtypes[d], s->weights_bytes)
                                              : plain_product_bytes(s->shapes[i], s->dtypes[d], s->op, s->weights_bytes);
            char wants[MEMORY_TEXT_MAX], has[MEMORY_TEXT_MAX];
            if (needed > limit.bytes) {
                FAIL(EXPERTD_ERR_NOMEM,
                     "shape %s in %s needs %s, but there are %s (%s); select other shapes with --shape, or use a smaller "
                     "pool of weights with --weights-mib",
                     s->shapes[i]->name, s->dtypes[d]->name, memory_text(needed, wants), memory_text(limit.bytes, has), limit.what);
            }
        }
    }
    return OK;
}
