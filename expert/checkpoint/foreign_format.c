#include "expert/checkpoint/foreign_format.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct row {
    const char *suffix;  // of a tensor that only this format has
    const char *sibling; // the suffix of another tensor of the same module, which must exist too; NULL: none
    const char *name;
};

static const struct row ROWS[] = {
    {".biases", ".scales", "MLX"},           {".q_weight", NULL, "ExLlamaV2 (exl2)"},
    {".trellis", NULL, "ExLlamaV3 (exl3)"},  {".weight.absmax", NULL, "bitsandbytes (4 bits)"},
    {".SCB", NULL, "bitsandbytes (8 bits)"}, {".W_q", NULL, "HQQ"},
    {".codebooks", ".codes", "AQLM"},        {".Qidxs", NULL, "QuIP#"},
};
enum { ROW_COUNT = sizeof ROWS / sizeof *ROWS };

// Components of names that hold experts in the layouts of all programs.
static bool is_of_experts(const char *name) {
    return strstr(name, "expert") || strstr(name, "switch_mlp");
}

static bool has_sibling(const struct checkpoint *checkpoint, const char *name, const struct row *row) {
    char sibling[SAFETENSORS_NAME_BYTES_MAX + 32];
    snprintf(sibling, sizeof sibling, "%.*s%s", (int)(strlen(name) - strlen(row->suffix)), name, row->sibling);
    size_t at = checkpoint_lower_bound(checkpoint, sibling);
    return at < checkpoint_count(checkpoint) && strcmp(checkpoint_at(checkpoint, at)->name, sibling) == 0;
}

static bool matches(const struct checkpoint *checkpoint, const char *name, const struct row *row) {
    size_t length = strlen(name), suffix = strlen(row->suffix);
    return length > suffix && strcmp(name + length - suffix, row->suffix) == 0 &&
           (!row->sibling || has_sibling(checkpoint, name, row));
}

FALLIBLE foreign_format_check(const struct checkpoint *checkpoint) {
    for (size_t i = 0; i < checkpoint_count(checkpoint); i++) {
        const char *name = checkpoint_at(checkpoint, i)->name;
        for (size_t r = 0; r < ROW_COUNT && is_of_experts(name); r++) {
            if (matches(checkpoint, name, &ROWS[r])) {
                FAIL(EXPERTD_ERR_CHECKPOINT,
                     "%s: the experts are quantised in the format of %s, which is not supported (tensor %.256s): use the model's "
                     "original "
                     "checkpoint, or one in a format that docs/models.md lists",
                     checkpoint_path(checkpoint), ROWS[r].name, name);
            }
        }
    }
    return OK;
}
