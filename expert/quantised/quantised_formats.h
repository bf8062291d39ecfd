// The table of formats of quantised weights on disk. A new format is a row. Constant data; any thread.
// Sources: the models' and the quantisers' own code (DeepSeek, compressed-tensors, ModelOpt, AutoAWQ, GPTQModel, gpt-oss).
// Private to expert/quantised/.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISED_FORMATS_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISED_FORMATS_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/kernels/quantised.h"

enum { STORED_DTYPES = 6, STORED_EXTRAS = 4 };

enum code_layout {
    CODES_ROWS,          // [N, K], one element per code
    CODES_PAIRS,         // [N, K / 2] bytes, the lower k in the low nibble
    CODES_BLOCKS,        // [N, K / 32, 16] bytes, the lower k in the low nibble
    CODES_WORDS,         // [N, ceil(K * bits / 32)] words, the lowest k in the lowest bits; zero points [ceil(N * bits / 32), G]
    CODES_WORDS_AWQ,     // [K, N / 8] words, in AWQ's order of nibbles; zero points [G, N / 8]
    CODES_WORDS_QUARK,   // the same; config.json says whether in AWQ's order, and whether the codes are signed
    CODES_WORDS_N_MAJOR, // [K * bits / 32, N] words of consecutive k; zero points [G, N * bits / 32]
    CODES_STREAM,        // [N, K * bits / 32] words; a row is a stream of bits, the lowest k in the lowest bits of the first word
};
// Of the first four, tensors that hold all experts may have their last two dimensions swapped: [K, N], [K / 2, N], …

// When stored zero points are subtracted from the codes.
enum zeros_rule {
    ZEROS_ALWAYS,        // Quark
    ZEROS_AND_MIDDLE,    // AWQ: always; all must be in the middle if `zero_point` is false or `sym` true: some engines ignore them
    ZEROS_UNLESS_SAID,   // GPTQ: not if `sym` is true; engines differ if it is absent
    ZEROS_IF_ASYMMETRIC, // compressed-tensors: only if `symmetric` is false; it is true if it is absent
};

enum scale_layout {
    SCALES_TENSOR = 1,   // one scale
    SCALES_CHANNEL = 2,  // [N] or [N, 1]
    SCALES_GROUPS = 4,   // [N, G]
    SCALES_GRID = 8,     // [ceil(N / block), ceil(K / block)]
    SCALES_N_MAJOR = 16, // [G, N]
    SCALES_SHORT = 32,   // the last group along K may be short
};

// Suffixes are in the spelling of quantised_names.h. Lists of dtypes end with EXPERTD_DTYPE_NONE.
struct stored_format {
    const char *name;
    const char *family; // the word in quant_method or packing_format that means this format and excludes the others; NULL: none
    const char *codes;
    enum expertd_dtype codes_dtypes[STORED_DTYPES];
    enum code_layout layout;
    enum expertd_weight_code code; // in words of integers INT4 also stands for INT8, in streams UINT4: the tensor's shape tells
    bool code_of_dtype;            // the tensor's dtype determines the code: E4M3 or E5M2
    const char *scales;
    enum expertd_dtype scale_dtypes[STORED_DTYPES];
    unsigned scale_layouts;
    size_t scale_k;       // number of k that share a scale; 0: from config.json or the shapes
    bool scales_are_e4m3; // scales of U8, which are E8M0 otherwise
    bool scales_tell;     // the format only if its scales have the shape that scale_k gives: another one has such codes too
    const char *biases;   // a weight is code * scale + bias; of the scales' dtype and shape; required
    const char *zeros;    // zero points; optional unless needs_zeros
    bool needs_zeros;
    enum zeros_rule zeros_rule;
    const char *global; // global scale; required
    enum expertd_global_scale global_is;
    const char *scale_of_k;            // the scale of each k (g_idx); optional
    bool order_may_be_unsaid;          // scale_of_k may sort k although config.json does not say so
    const char *original_shape;        // N and K of the weights, as two integers; optional
    const char *mlx_mode;              // described by MLX's own section of config.json, if there is one: its `mode`
    const char *extras[STORED_EXTRAS]; // ignored: numbers that scale activations, and redundant tensors; NULL ends the list
};

// Formats whose tensors have the same names and dtypes are distinguished by the codes' shape. Order: a format precedes the formats
// whose tensors are a subset of its own.
extern const struct stored_format STORED_FORMATS[];
extern const size_t STORED_FORMAT_COUNT;

#endif
