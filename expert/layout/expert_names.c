#include "expert/layout/expert_names.h"

#include <string.h>

#include "expert/layout/layout_miss.h"

// Aria: fc1, fc2; Granite and JetMoE: input_linear, output_linear; MLX's experts without a gate: fc1, fc2; HY-V4's shared expert as
// transformers saves it: linear_gate; Unsloth's gpt-oss: gate_up_projs; GPTQModel's: gate_up, down.
static const struct expert_name_set SETS[] = {
    {.gate = "gate_proj", .up = "up_proj", .down = "down_proj"},
    {.gate = "w1", .up = "w3", .down = "w2"},
    {.gate = "w1", .up = "v1", .down = "w2", .down_is_untransposed = true},
    {.gate = "linear_gate", .up = "up_proj", .down = "down_proj"},
    {.gate = "gate_projs", .up = "up_projs", .down = "down_projs"},
    {.gate_up = "gate_up_proj", .down = "down_proj", .may_alternate = true},
    {.gate_up = "gate_up_projs", .down = "down_projs", .may_alternate = true},
    {.gate_up = "gate_up", .down = "down", .may_alternate = true},
    {.gate_up = "fc1", .down = "fc2"},
    {.gate_up = "input_linear", .down = "output_linear"},
    {.up = "up_proj", .down = "down_proj"},
    {.up = "fc1", .down = "fc2"},
    // llama.cpp's; by part in files of 2023
    {.gate = "ffn_gate_exps", .up = "ffn_up_exps", .down = "ffn_down_exps", .place = NAMES_STACKED_IN_LAYER},
    {.gate_up = "ffn_gate_up_exps", .down = "ffn_down_exps", .place = NAMES_STACKED_IN_LAYER},
    {.up = "ffn_up_exps", .down = "ffn_down_exps", .place = NAMES_STACKED_IN_LAYER},
    {.gate = "ffn_gate", .up = "ffn_up", .down = "ffn_down", .place = NAMES_BY_PART_IN_LAYER},
    {.gate = "ffn_gate_shexp", .up = "ffn_up_shexp", .down = "ffn_down_shexp", .place = NAMES_OF_SHARED_IN_LAYER},
    {.up = "ffn_up_shexp", .down = "ffn_down_shexp", .place = NAMES_OF_SHARED_IN_LAYER},
};
enum { SET_COUNT = sizeof SETS / sizeof *SETS };

// The matrices of a set as bits.
enum { HAS_GATE = 1, HAS_UP = 2, HAS_DOWN = 4 };

static const char EXPERT_PREFIX[] = "expert_";

static unsigned bits_of(const struct expert_name_set *set) {
    return (set->gate ? HAS_GATE : 0) | (set->up || set->gate_up ? HAS_UP : 0) | HAS_DOWN;
}

static bool is_gated(const struct expert_name_set *set) {
    return set->gate || set->gate_up;
}

// Does the text begin with `name`, followed by the end, a component, or a suffix such as _bias? gate_up_proj is not gate_up.
static bool begins_with(const char *text, const char *name) {
    size_t length = name ? strlen(name) : 0;
    if (!name || strncmp(text, name, length) != 0) {
        return false;
    }
    const char *rest = text + length;
    return *rest == '\0' || *rest == '.' || (*rest == '_' && strncmp(rest, "_proj", strlen("_proj")) != 0);
}

static unsigned bits_of_name(const struct expert_name_set *set, const char *text) {
    return (begins_with(text, set->gate) ? HAS_GATE : 0) |
           (begins_with(text, set->up) || begins_with(text, set->gate_up) ? HAS_UP : 0) |
           (begins_with(text, set->down) ? HAS_DOWN : 0);
}

static size_t digits_of(const char *text) {
    return strspn(text, "0123456789");
}

// The text after an expert's number and its '.'; NULL: it does not begin with a number.
static const char *after_number(const char *rest, const char **prefix) {
    bool named = strncmp(rest, EXPERT_PREFIX, sizeof EXPERT_PREFIX - 1) == 0;
    const char *number = rest + (named ? sizeof EXPERT_PREFIX - 1 : 0);
    size_t digits = digits_of(number);
    if (digits == 0 || number[digits] != '.') {
        return NULL;
    }
    *prefix = named ? EXPERT_PREFIX : "";
    return number + digits + 1;
}

// "gate_proj.12" or "gate_proj.12.weight".
static bool is_part_then_number(const char *text) {
    const char *number = text + strcspn(text, ".");
    size_t digits = *number ? digits_of(number + 1) : 0;
    return digits > 0 && (number[1 + digits] == '\0' || number[1 + digits] == '.');
}

bool expert_names_match(const char *rest, const struct expertd_tensor_view *view, bool bare) {
    const char *prefix;
    if (after_number(rest, &prefix)) {
        return !bare;
    }
    // A dense network's scales may have three dimensions, its weights have two.
    if (bare && (view->rank < 3 || strstr(rest, "scale"))) {
        return false;
    }
    for (size_t i = 0; i < SET_COUNT; i++) {
        if (SETS[i].place == NAMES_IN_MODULE && (bits_of_name(&SETS[i], rest) & (bare ? HAS_GATE | HAS_UP : ~0U))) {
            return true;
        }
    }
    return false;
}

bool expert_names_match_flat(const char *rest) {
    bool by_part = is_part_then_number(rest);
    for (size_t i = 0; i < SET_COUNT; i++) {
        if (SETS[i].place == (by_part ? NAMES_BY_PART_IN_LAYER : NAMES_STACKED_IN_LAYER) && bits_of_name(&SETS[i], rest)) {
            return true;
        }
    }
    return false;
}

// ---- detection ----

// May a checkpoint have the set in this arrangement? `shared`: the names are a shared expert's.
static bool may_have(const struct expert_name_set *set, enum expert_arrangement arrangement, bool gguf, bool shared) {
    switch (set->place) {
    case NAMES_IN_MODULE:
        return !gguf;
    case NAMES_BY_PART_IN_LAYER:
        return gguf && !shared && arrangement == ARRANGED_BY_PART;
    default:
        return gguf && shared == (set->place == NAMES_OF_SHARED_IN_LAYER) && arrangement == ARRANGED_STACKED;
    }
}

// Which matrices of each set a module has, in each arrangement.
struct seen {
    unsigned bits[ARRANGEMENTS][SET_COUNT];
    const char *number_prefix;
};

static void see_name(struct seen *seen, const char *rest, bool gguf, bool shared) {
    const char *part = after_number(rest, &seen->number_prefix);
    enum expert_arrangement arrangement = part                        ? ARRANGED_BY_EXPERT
                                          : is_part_then_number(rest) ? ARRANGED_BY_PART
                                                                      : ARRANGED_STACKED;
    for (size_t i = 0; i < SET_COUNT; i++) {
        if (may_have(&SETS[i], arrangement, gguf, shared)) {
            seen->bits[arrangement][i] |= bits_of_name(&SETS[i], part ? part : rest);
        }
    }
}

static FALLIBLE see_module(const struct tensor_finder *finder, const char *module, bool shared, struct seen *seen) {
    const struct checkpoint *checkpoint = finder->checkpoint;
    char below[TENSOR_NAME_MAX];
    TRY(tensor_name(below, "%s.", module));
    *seen = (struct seen){.number_prefix = ""};
    size_t length = strlen(below), count = checkpoint_count(checkpoint);
    for (size_t i = checkpoint_lower_bound(checkpoint, below); i < count; i++) {
        const char *name = checkpoint_at(checkpoint, i)->name;
        if (strncmp(name, below, length) != 0) {
            break;
        }
        see_name(seen, name + length, checkpoint_is_gguf(checkpoint), shared);
    }
    return OK;
}

// The names by which a message tells two sets apart.
static void differing_names(const struct expert_name_set *a, const struct expert_name_set *b, const char *out[2]) {
    bool gates = a->gate && b->gate && strcmp(a->gate, b->gate) != 0;
    out[0] = gates ? a->gate : a->gate_up ? a->gate_up : a->up;
    out[1] = gates ? b->gate : b->gate_up ? b->gate_up : b->up;
}

static err_t two_layouts(const struct tensor_finder *finder, const char *module, const struct expert_layout *a,
                         const struct expert_layout *b) {
    char names[2][TENSOR_NAME_MAX];
    const char *parts[2];
    differing_names(a->set, b->set, parts);
    TRY(expert_names_module(a, module, 0, parts[0], names[0]));
    TRY(expert_names_module(b, module, 0, parts[1], names[1]));
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: both %s and %s exist, two layouts of the same experts: cannot tell which of them counts",
         checkpoint_path(finder->checkpoint), names[0], names[1]);
}

// Sets *out to the only complete layout. *found is false if there is none.
static FALLIBLE find_complete(const struct tensor_finder *finder, const char *module, bool gated, const struct seen *seen,
                              struct expert_layout *out, bool *found) {
    *found = false;
    for (int a = 0; a < ARRANGEMENTS; a++) {
        for (size_t i = 0; i < SET_COUNT; i++) {
            struct expert_layout layout = {&SETS[i], (enum expert_arrangement)a, seen->number_prefix};
            if (is_gated(&SETS[i]) != gated || seen->bits[a][i] != bits_of(&SETS[i])) {
                continue;
            }
            if (*found) {
                return two_layouts(finder, module, out, &layout);
            }
            *out = layout;
            *found = true;
        }
    }
    return OK;
}

// Sets *out to the layout of which the most matrices exist and one is missing. False: there is none, or only down exists.
static bool find_almost(const struct seen *seen, bool gated, struct expert_layout *out) {
    int most = 0;
    for (int a = 0; a < ARRANGEMENTS; a++) {
        for (size_t i = 0; i < SET_COUNT; i++) {
            unsigned bits = seen->bits[a][i];
            int missing = __builtin_popcount(bits_of(&SETS[i]) & ~bits), present = __builtin_popcount(bits);
            if (is_gated(&SETS[i]) == gated && missing == 1 && bits != HAS_DOWN && present > most) {
                most = present;
                *out = (struct expert_layout){&SETS[i], (enum expert_arrangement)a, seen->number_prefix};
            }
        }
    }
    return most > 0;
}

FALLIBLE expert_names_find(const struct tensor_finder *finder, const char *module, bool gated, struct expert_layout *out) {
    struct seen seen;
    bool found;
    TRY(see_module(finder, module, false, &seen));
    TRY(find_complete(finder, module, gated, &seen, out, &found));
    return found || find_almost(&seen, gated, out) ? OK : layout_miss(finder->checkpoint, module, gated);
}

static const struct expert_name_set *usual_shared_set(bool gguf) {
    size_t i = 0;
    while (gguf && SETS[i].place != NAMES_OF_SHARED_IN_LAYER) {
        i++;
    }
    return &SETS[i];
}

FALLIBLE expert_names_find_shared(const struct tensor_finder *finder, const char *module, bool gated, struct expert_layout *out) {
    struct seen all, seen;
    bool found;
    TRY(see_module(finder, module, true, &all));
    seen = (struct seen){.number_prefix = ""};
    memcpy(seen.bits[ARRANGED_STACKED], all.bits[ARRANGED_STACKED], sizeof seen.bits[ARRANGED_STACKED]);
    TRY(find_complete(finder, module, gated, &seen, out, &found));
    if (!found && !find_almost(&seen, gated, out)) {
        *out = (struct expert_layout){usual_shared_set(checkpoint_is_gguf(finder->checkpoint)), ARRANGED_STACKED, ""};
    }
    return OK;
}

// ---- names of tensors ----

FALLIBLE expert_names_module(const struct expert_layout *layout, const char *module, uint32_t expert, const char *part,
                             char out[TENSOR_NAME_MAX]) {
    switch (layout->arrangement) {
    case ARRANGED_BY_EXPERT:
        return tensor_name(out, "%s.%s%u.%s", module, layout->number_prefix, expert, part);
    case ARRANGED_BY_PART:
        return tensor_name(out, "%s.%s.%u", module, part, expert);
    default:
        return tensor_name(out, "%s.%s", module, part);
    }
}

// Sets `out` to the only one of "module" + suffix that exists, or to the one with the suffix `otherwise`.
static FALLIBLE find_spelling(const struct tensor_finder *finder, const char *module, const char *const *suffixes,
                              const char *otherwise, char out[TENSOR_NAME_MAX]) {
    char name[TENSOR_NAME_MAX];
    bool found = false;
    TRY(tensor_name(out, "%s%s", module, otherwise));
    for (; *suffixes; suffixes++) {
        TRY(tensor_name(name, "%s%s", module, *suffixes));
        if (!tensor_exists(finder, name)) {
            continue;
        }
        if (found) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: both %s and %s exist: cannot tell which of them counts",
                 checkpoint_path(finder->checkpoint), out, name);
        }
        TRY(tensor_name(out, "%s", name));
        found = true;
    }
    return OK;
}

FALLIBLE expert_names_weight(const struct tensor_finder *finder, const char *module, bool stacked, char out[TENSOR_NAME_MAX]) {
    static const char *const SUFFIXES[] = {".weight", "", "_weight", NULL};
    bool bare = stacked && !checkpoint_is_gguf(finder->checkpoint);
    return find_spelling(finder, module, SUFFIXES, bare ? "" : ".weight", out);
}

bool expert_names_is_module_weight(const char *name) {
    size_t length = strlen(name), suffix = strlen(".weight");
    return length > suffix && strcmp(name + length - suffix, ".weight") == 0;
}

FALLIBLE expert_names_bias(const struct tensor_finder *finder, const char *module, bool stacked, char out[TENSOR_NAME_MAX]) {
    static const char *const SUFFIXES[] = {".bias", "_bias", NULL};
    bool joined = stacked && !checkpoint_is_gguf(finder->checkpoint);
    return find_spelling(finder, module, SUFFIXES, joined ? "_bias" : ".bias", out);
}

FALLIBLE expert_names_check_plain(const struct tensor_finder *finder, const char *module) {
    char name[TENSOR_NAME_MAX];
    TRY(tensor_name(name, "%s.base_layer.weight", module));
    if (tensor_exists(finder, name)) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: tensor %s is a weight below a LoRA adapter: merge the adapter into the weights "
             "(merge_and_unload of PEFT)",
             checkpoint_path(finder->checkpoint), name);
    }
    return OK;
}
