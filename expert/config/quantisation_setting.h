// What config.json says about the quantised weights of a module: for each fact its value, and the key that says it. Private to
// expert/.
#ifndef EXPERTD_EXPERT_CONFIG_QUANTISATION_SETTING_H
#define EXPERTD_EXPERT_CONFIG_QUANTISATION_SETTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expert/config/config.h"

#define QUANTISATION_ALL_K UINT32_MAX

enum quantisation_answer { QUANTISATION_UNSAID, QUANTISATION_NO, QUANTISATION_YES };
enum quantisation_kind { QUANTISATION_ANY_KIND, QUANTISATION_INTEGERS, QUANTISATION_FLOATS };

// A key is a full path, "quantization_config.config_groups.group_0.weights.num_bits"; NULL: the fact is not said.
struct quantisation_setting {
    uint32_t bits; // 0: not said
    const char *bits_key;
    uint32_t group_k;                   // number of consecutive k that share a scale; QUANTISATION_ALL_K: all; 0: not said
    uint32_t block_n, block_k;          // size of a block of weights that share a scale; 0: not said
    const char *span_key;               // of group_k, or of the block
    enum quantisation_answer symmetric; // sym, symmetric, zero_point: codes have the zero point in the middle of their range
    const char *symmetric_text;         // "quantization_config.sym is true"; NULL: the fact is not said
    enum quantisation_answer ordered;   // desc_act, actorder: g_idx maps each k to its scale
    const char *ordered_key;
    enum quantisation_kind kind; // type, data_type, dtype: of the codes
    const char *kind_text;       // "quantization_config.data_type is mx_int"; NULL: the fact is not said
    char mode[16];               // MLX's name of the format, "mxfp4"; "": not said
    const char *mode_text;       // "quantization.mode is mxfp4"; NULL: not said
};

// Texts that live as long as the settings that borrow them.
struct quantisation_texts {
    char **texts;
    size_t count;
};
void quantisation_texts_deinit(struct quantisation_texts *texts); // legal on a zeroed struct
// Formats a text; *out is borrowed from `texts`.
FALLIBLE quantisation_text(struct quantisation_texts *texts, const char **out, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Reads the keys of the object at `object` (or of `config` itself if it is ""). `path`: of the object, for the keys of the setting.
// EXPERTD_ERR_CHECKPOINT: a wrong type or value, or two keys that contradict each other.
FALLIBLE quantisation_read_setting(const struct config *config, const char *object, const char *path,
                                   struct quantisation_texts *texts, struct quantisation_setting *out);

// Replaces the facts in *base that `over` says.
void quantisation_lay_over(struct quantisation_setting *base, const struct quantisation_setting *over);

// Do both say the same, apart from their keys?
bool quantisation_same_setting(const struct quantisation_setting *a, const struct quantisation_setting *b);

#endif
