// The formats of quantised weights on disk, as data: a new one is a row. Private to expert/. Constant; any thread.
// Sources: the models' and the quantisers' own code (DeepSeek, compressed-tensors, ModelOpt, AutoAWQ, GPTQModel, gpt-oss).
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISED_FORMATS_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISED_FORMATS_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/kernels/quantised.h"

enum { STORED_DTYPES = 6, STORED_EXTRAS = 4 };

enum code_layout {
    CODES_ROWS,          // [N, K], an element each
    CODES_PAIRS,         // [N, K / 2] bytes, the least k in the low half
    CODES_BLOCKS,        // [N, K / 32, 16] bytes, the same
    CODES_WORDS,         // [N, ceil(K * bits / 32)] words, the least k lowest; zero points [ceil(N * bits / 32), G]
    CODES_WORDS_AWQ,     // [K, N / 8] words; zero points [G, N / 8]
    CODES_WORDS_BY_DEPTH // [K * bits / 32, N] words; zero points [G, N * bits / 32]
};

enum scale_layout {
    SCALES_TENSOR = 1, // one
    SCALES_COLUMN = 2, // [N] or [N, 1]
    SCALES_GROUPS = 4, // [N, G]
    SCALES_GRID = 8,   // [ceil(N / block), ceil(K / block)]
    SCALES_DEPTH = 16, // [G, N]
    SCALES_SHORT = 32, // the last of the groups may be short
};

// A format on disk. Names follow the module's. Dtypes end with EXPERTD_DTYPE_NONE, texts with NULL.
struct stored_format {
    const char *name;
    const char *methods; // quant_method's values that are known to write it
    bool needs_method;   // the same tensors mean different things to different methods
    const char *codes;
    enum expertd_dtype codes_dtypes[STORED_DTYPES];
    enum code_layout layout;
    enum expertd_weight_code code; // of words INT4 also says INT8: their number tells
    bool code_of_dtype;            // E4M3 or E5M2, as the tensor's dtype says
    const char *scales;
    enum expertd_dtype scale_dtypes[STORED_DTYPES];
    unsigned scale_layouts;
    size_t scale_k;    // of every matrix of this format; 0: config.json and the shapes tell
    const char *zeros; // may be missing, but for needs_zeros
    bool needs_zeros;
    const char *global; // must be there
    enum expertd_global_scale global_is;
    const char *scale_of_k;            // may be missing
    const char *extras[STORED_EXTRAS]; // what is there for activations, or says again what the others say
};

// A format with more tensors comes before one with fewer of the same names.
extern const struct stored_format STORED_FORMATS[];
extern const size_t STORED_FORMAT_COUNT;

#endif
