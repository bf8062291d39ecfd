// Quantisers whose weights are not served, and transformations that change the meaning of codes: recognised by the names of their
// tensors, or by quant_method, and refused by name. Constant data; any thread. Private to expert/quantised/.
#ifndef EXPERTD_EXPERT_QUANTISED_QUANTISED_FOREIGN_H
#define EXPERTD_EXPERT_QUANTISED_QUANTISED_FOREIGN_H

#include "expert/quantised/quantised_names.h"

// EXPERTD_ERR_CHECKPOINT: one of the module's tensors is written by such a quantiser only, or changes the meaning of the codes.
FALLIBLE quantised_check_foreign(const struct tensor_finder *finder, const struct quantised_names *names);

// EXPERTD_ERR_CHECKPOINT: quant_method is such a quantiser's, although the codes look like `format`.
FALLIBLE quantised_check_method(const struct tensor_finder *finder, const struct quantisation *config,
                                const struct safetensors_entry *codes, const char *format);

#endif
