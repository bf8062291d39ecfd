// The words of expertctl's command line that are no flags, and what each command needs.
#include "client/expertctl/options.h"

#include <string.h>

#include "base/suggest.h"
#include "proto/admin/admin_shards.h"

// ---- words

// Finds a subcommand by its name. `names` are those of command `of`, in the order of an enum.
static FALLIBLE read_subcommand(const char *word, const char *of, const char *const *names, size_t count, const char *list,
                                int *out) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(word, names[i]) == 0) {
            *out = (int)i;
            return OK;
        }
    }
    const char *near = suggest_word(word, strlen(word), names, count);
    FAIL(EXPERTD_ERR_USAGE, "unknown command %s %s: %s%s", of, word, near ? "did you mean " : list, near ? near : "");
}

static FALLIBLE read_placement(const char *word, struct ctl_options *out) {
    static const char *const NAMES[] = {"show", "plan", "apply"};
    int found = 0;
    TRY(read_subcommand(word, "placement", NAMES, sizeof NAMES / sizeof *NAMES, "it is one of show, plan, apply", &found));
    out->placement = (enum placement_command)(PLACEMENT_SHOW + found);
    return OK;
}

static FALLIBLE read_shards(const char *word, struct ctl_options *out) {
    static const char *const NAMES[] = {"list", "drain", "add", "remove"};
    int found = 0;
    TRY(read_subcommand(word, "shards", NAMES, sizeof NAMES / sizeof *NAMES, "it is one of list, drain, add, remove", &found));
    out->shards_command = (enum shards_command)(SHARDS_LIST + found);
    return OK;
}

FALLIBLE ctl_read_word(const char *word, struct ctl_options *out) {
    if (out->command == COMMAND_PLACEMENT && out->placement == PLACEMENT_NONE) {
        return read_placement(word, out);
    }
    if (out->command == COMMAND_SHARDS && out->shards_command == SHARDS_NONE) {
        return read_shards(word, out);
    }
    if (out->shards_command > SHARDS_LIST && !out->shard) {
        out->shard = word;
        return OK;
    }
    if (out->command == COMMAND_INSPECT && !out->inspected) {
        out->inspected = word;
        return OK;
    }
    if (out->placement == PLACEMENT_APPLY && !out->plan) {
        out->plan = word;
        return OK;
    }
    if (out->command == COMMAND_INSPECT) {
        FAIL(EXPERTD_ERR_USAGE, "%s: inspect describes one model at a time, and %s is named already", word, out->inspected);
    }
    if (out->shard) {
        FAIL(EXPERTD_ERR_USAGE, "%s: one shard at a time, and %s is named already", word, out->shard);
    }
    FAIL(EXPERTD_ERR_USAGE, "%s: one command at a time, and files go with a flag", word);
}

// ---- commands

static FALLIBLE check_forward(const struct ctl_options *o) {
    if (!o->have_layer) {
        FAIL(EXPERTD_ERR_USAGE, "forward needs --layer L; expertctl models lists the layers that are served");
    }
    if (!o->hidden) {
        FAIL(EXPERTD_ERR_USAGE, "forward needs --hidden FILE.npy or --hidden FILE.safetensors:TENSOR");
    }
    if (!o->ids != !o->weights) {
        FAIL(EXPERTD_ERR_USAGE, "--ids and --weights go together; %s is missing", o->ids ? "--weights" : "--ids");
    }
    if (o->output_dtype != EXPERTD_DTYPE_NONE && !expertd_dtype_is_float16_or_32(o->output_dtype)) {
        FAIL(EXPERTD_ERR_USAGE, "--dtype: the answer is f32, bf16 or f16");
    }
    if (o->ids && o->router_logits) {
        FAIL(EXPERTD_ERR_USAGE, "--ids with --weights, or --router-logits: give one of them, the routing cannot come from both");
    }
    return OK;
}

static FALLIBLE check_compare(const struct ctl_options *o) {
    if (!o->with) {
        FAIL(EXPERTD_ERR_USAGE, "compare needs --with ADDRESS, the daemon whose answers are compared with those of --address");
    }
    return OK;
}

// Checks the flags that only plan takes, and the file that apply needs.
static FALLIBLE check_placement(const struct ctl_options *o) {
    bool planning = o->policy || o->replicas || o->counts || o->output;
    if (o->placement == PLACEMENT_NONE) {
        FAIL(EXPERTD_ERR_USAGE, "placement needs one of show, plan, apply PLAN.json");
    }
    if (planning && o->placement != PLACEMENT_PLAN) {
        FAIL(EXPERTD_ERR_USAGE, "--policy, --replicas, --counts and --output belong to expertctl placement plan");
    }
    if (o->placement == PLACEMENT_APPLY && !o->plan) {
        FAIL(EXPERTD_ERR_USAGE, "placement apply needs the file that placement plan --output wrote");
    }
    if (o->placement == PLACEMENT_APPLY && o->have_layer) {
        FAIL(EXPERTD_ERR_USAGE, "placement apply moves all layers of its file: leave --layer out");
    }
    return OK;
}

static FALLIBLE check_shards(struct ctl_options *o) {
    o->shards_command = o->shards_command == SHARDS_NONE ? SHARDS_LIST : o->shards_command;
    const char *const names[] = {[SHARDS_DRAIN] = "drain", [SHARDS_ADD] = "add", [SHARDS_REMOVE] = "remove"};
    if (o->shards_command > SHARDS_LIST && !o->shard) {
        FAIL(EXPERTD_ERR_USAGE, "shards %s needs the address of a shard; expertctl shards lists them", names[o->shards_command]);
    }
    if (o->shard && strlen(o->shard) >= PROTO_SHARD_ADDRESS_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "an address of a shard has at most %d bytes", PROTO_SHARD_ADDRESS_MAX - 1);
    }
    if ((o->wait || o->cancel) && o->shards_command != SHARDS_DRAIN) {
        FAIL(EXPERTD_ERR_USAGE, "%s belongs to expertctl shards drain", o->wait ? "--wait" : "--cancel");
    }
    if (o->wait && o->cancel) {
        FAIL(EXPERTD_ERR_USAGE, "--cancel ends a drain at once: leave --wait out");
    }
    return OK;
}

FALLIBLE ctl_check_command(struct ctl_options *o) {
    switch (o->command) {
    case COMMAND_FORWARD:
        return check_forward(o);
    case COMMAND_COMPARE:
        return check_compare(o);
    case COMMAND_PLACEMENT:
        return check_placement(o);
    case COMMAND_SHARDS:
        return check_shards(o);
    case COMMAND_INSPECT:
        if (!o->inspected) {
            FAIL(EXPERTD_ERR_USAGE, "inspect needs a model: a folder, ORG/NAME in the Hugging Face cache, or synthetic:PRESET");
        }
        return OK;
    case COMMAND_BENCH:
        if (o->bench.compare[0] && o->output_dtype != EXPERTD_DTYPE_NONE) {
            FAIL(EXPERTD_ERR_USAGE, "--compare calls no daemon: leave --dtype out");
        }
        return bench_options_finish(&o->bench);
    default:
        return OK;
    }
}
