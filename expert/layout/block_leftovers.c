#include "expert/layout/block_leftovers.h"

#include <stdlib.h>
#include <string.h>

#include "expert/quantised/quantised_tensors.h"

// A tensor that is recognised by the end of its name, or by a component (".lora_A.").
struct known_leftover {
    const char *text;
    const char *meaning; // why the model must not be served without it; NULL: it has no part in the outputs
};

static const char NO_NUMBER[] =
    "a vector in the place of the one number that scales activations: it may hold a factor of each input "
    "(smoothing), which is not supported: take a checkpoint whose weights include these factors";

static const struct known_leftover KNOWN[] = {
    // scales of activations, which are not quantised here
    {".input_scale", NO_NUMBER},
    {"_input_scale", NO_NUMBER},
    {".input_scale_ub", NO_NUMBER},
    {".input_global_scale", NO_NUMBER},
    {".input_zero_point", NO_NUMBER},
    {".activation_scale", NO_NUMBER},
    // state of training and of tools
    {"._extra_state", NULL},
    {".num_batches_tracked", NULL},
    {".tokens_per_expert", NULL},
    {".local_tokens_per_expert", NULL},
    {".rotary_emb.inv_freq", NULL},
    // what is needed and not implemented, besides the tensors of other quantisers (quantised_refuse_foreign)
    {".lora_A.", "a LoRA adapter's matrix: merge the adapter into the weights (merge_and_unload of PEFT)"},
    {".lora_B.", "a LoRA adapter's matrix: merge the adapter into the weights (merge_and_unload of PEFT)"},
    {".lora_magnitude_vector", "a DoRA adapter's vector: merge the adapter into the weights (merge_and_unload of PEFT)"},
    {".base_layer.", "a weight below a LoRA adapter: merge the adapter into the weights (merge_and_unload of PEFT)"},
    {"weight_scale", "a scale, but no matrix beside it is stored in codes that would need it"},
    {"weight_scale_2", "a scale, but no matrix beside it is stored in codes that would need it"},
    {"_scale_inv", "a scale, but no matrix beside it is stored in codes that would need it"},
    {".scales", "scales, but no matrix beside them is stored in codes that would need them"},
};

static bool is_known_by(const char *name, const char *text) {
    size_t length = strlen(name), of_text = strlen(text);
    if (text[of_text - 1] == '.') {
        return strstr(name, text) != NULL;
    }
    return length >= of_text && strcmp(name + length - of_text, text) == 0;
}

static const struct known_leftover *find_known(const char *name) {
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        if (is_known_by(name, KNOWN[i].text)) {
            return &KNOWN[i];
        }
    }
    return NULL;
}

// The expert's number in a tensor name; false: the tensor belongs to no numbered expert.
static bool expert_number(const char *name, const char *experts, unsigned long *number) {
    size_t length = strlen(experts);
    if (strncmp(name, experts, length) != 0 || name[length] != '.' || name[length + 1] < '0' || name[length + 1] > '9') {
        return false;
    }
    *number = strtoul(name + length + 1, NULL, 10);
    return true;
}

static FALLIBLE check_left(const struct tensor_finder *finder, const struct safetensors_entry *entry,
                           const struct expert_numbers *experts) {
    const struct known_leftover *known = find_known(entry->name);
    const char *file = checkpoint_file_of(finder->checkpoint, entry);
    unsigned long number;
    char quantised[TENSOR_QUANTISED_TEXT_MAX];
    bool numbered = expert_number(entry->name, experts->module, &number);
    if (numbered && number >= experts->num_experts) {
        if (number - experts->num_experts < experts->num_identity_experts) {
            return OK;
        }
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s belongs to expert %lu, but %s says that there are %u experts (%s)", file,
             entry->name, number, config_label(checkpoint_config(finder->checkpoint)), experts->num_experts, finder->sizes);
    }
    bool is_number = known && known->meaning == NO_NUMBER && quantised_is_number(entry, numbered ? 1 : experts->num_experts);
    if (is_number || (known && !known->meaning)) {
        return OK;
    }
    if (known) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is in the MoE block and is %s%s", file, entry->name, known->meaning,
             tensor_quantised_text(finder, quantised));
    }
    TRY(quantised_refuse_foreign(finder->checkpoint, entry->name));
    tensor_quantised_text(finder, quantised);
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is in the MoE block, but its architecture has no tensor of that name%s%s", file,
         entry->name, quantised,
         quantised[0] ? ": this format of quantised weights is not supported: use the model's BF16 checkpoint"
                      : ": ignoring it could change the outputs");
}

FALLIBLE block_leftovers_check(const struct tensor_finder *finder, const char *module, const struct expert_numbers *experts) {
    size_t length = strlen(module), count = checkpoint_count(finder->checkpoint);
    for (size_t i = checkpoint_lower_bound(finder->checkpoint, module); i < count; i++) {
        const struct safetensors_entry *entry = checkpoint_at(finder->checkpoint, i);
        if (strncmp(entry->name, module, length) != 0) {
            break;
        }
        if (!finder->taken[i]) {
            TRY(check_left(finder, entry, experts));
        }
    }
    return OK;
}

// "ffn_norm" of "ffn_norm.weight"; a number behind the component belongs to an expert.
static bool is_beside(const char *rest, const char *const *beside) {
    size_t length = strcspn(rest, ".");
    bool numbered = rest[length] == '.' && rest[length + 1] >= '0' && rest[length + 1] <= '9';
    for (const char *const *name = beside; *name && !numbered; name++) {
        if (strlen(*name) == length && strncmp(rest, *name, length) == 0) {
            return true;
        }
    }
    return false;
}

bool block_leftovers_is_of_block(const char *rest, const char *const *beside) {
    return (strncmp(rest, "ffn_", 4) == 0 || strncmp(rest, "exp_", 4) == 0) && !is_beside(rest, beside);
}

FALLIBLE block_leftovers_check_flat(const struct tensor_finder *finder, const char *layer, const char *const *beside,
                                    const struct expert_numbers *experts) {
    size_t length = strlen(layer), count = checkpoint_count(finder->checkpoint);
    for (size_t i = checkpoint_lower_bound(finder->checkpoint, layer); i < count; i++) {
        const struct safetensors_entry *entry = checkpoint_at(finder->checkpoint, i);
        if (strncmp(entry->name, layer, length) != 0) {
            break;
        }
        const char *rest = entry->name + length;
        if (!finder->taken[i] && block_leftovers_is_of_block(rest, beside)) {
            TRY(check_left(finder, entry, experts));
        }
    }
    return OK;
}
