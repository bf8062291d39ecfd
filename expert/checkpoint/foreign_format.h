// Recognises experts in formats of quantisation that this program does not read, by the suffixes of their tensors' names.
// Private to expert/.
#ifndef EXPERTD_EXPERT_CHECKPOINT_FOREIGN_FORMAT_H
#define EXPERTD_EXPERT_CHECKPOINT_FOREIGN_FORMAT_H

#include "base/err.h"
#include "expert/checkpoint/checkpoint.h"

// EXPERTD_ERR_CHECKPOINT names the format and the first of its tensors. Reads names only.
FALLIBLE foreign_format_check(const struct checkpoint *checkpoint);

#endif
