#include "daemon/examine/verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mapped.h"
#include "base/printable.h"
#include "base/process/standard_output.h"
#include "daemon/examine/digest_file.h"
#include "daemon/log/log.h"
#include "daemon/process/loading.h"
#include "expert/loader/model_audit.h"
#include "expert/loader/model_load.h"
#include "expert/model/memory.h"
#include "expert/supply/supply.h"

enum { EXIT_UNSOUND = 65 };

// ---- a sink that drops every expert

static err_t begin(void *context, const struct model *model, unsigned threads) {
    (void)context, (void)model, (void)threads;
    return OK;
}

static err_t put(void *context, const struct model *model, size_t layer, uint32_t expert, unsigned thread) {
    (void)context, (void)model, (void)layer, (void)expert, (void)thread;
    return OK;
}

static err_t end(void *context, const struct model *model) {
    (void)context, (void)model;
    return OK;
}

// ---- loading

static FALLIBLE load(const struct options *options, struct loaded *loaded, struct model_audit *audit) {
    static const struct model_sink dropped = {.begin = begin, .put = put, .end = end};
    struct loading_progress progress = {.started_ns = clock_now_ns(), .last_ns = clock_now_ns()};
    struct model_options model = loading_model_options(options, loaded);
    model.ranks = 1;
    model.sink = &dropped;
    model.audit = audit;
    model.progress = loading_show_progress;
    model.progress_context = &progress;
    return model_load(&model, &loaded->model);
}

static FALLIBLE prepare(const struct options *options, struct loaded *loaded) {
    enum log_level level = LOG_LEVEL_INFO;
    (void)log_level_parse(options->log_level, &level); // options_parse has checked the text
    log_init(level, options->journal);
    TRY(mapped_install_handler());
    TRY(loading_select_kernels(options));
    return loading_start_teams(options, loaded);
}

// ---- the report

static void put_model(const struct model *model) {
    char bytes[MEMORY_TEXT_MAX];
    printf("model %s, %zu layers, %s read\n", model->name, model->num_layers, memory_text(model->stored_bytes, bytes));
    for (size_t i = 0; i < model->num_layers; i++) {
        printf("layer %" PRIu32 " weights id %016" PRIx64 "\n", model->layers[i].params.layer, model->layers[i].weights_id);
    }
}

static void put_notes(const struct checkpoint_notes *notes) {
    for (size_t i = 0; notes && i < notes->count; i++) {
        char text[2 * CHECKPOINT_NOTE_TEXT_MAX];
        printf("note %s\n", printable_escape(notes->notes[i].text, text, sizeof text));
    }
}

static const char *const VALUES[AUDIT_VALUES] = {
    [AUDIT_NAN] = "NaN",
    [AUDIT_INFINITE] = "infinite",
    [AUDIT_ABSURD] = "absurd",
    [AUDIT_NEGATIVE] = "negative",
    [AUDIT_ZERO] = "zero over codes that are not 0",
    [AUDIT_UNDERFLOW] = "underflowed to 0 over codes that are not 0",
    [AUDIT_TINY] = "tiny",
};

static void put_counts(const struct audited_tensor *tensor) {
    const char *separator = ": ";
    for (size_t i = 0; i < AUDIT_VALUES; i++) {
        if (tensor->count[i] == 0) {
            continue;
        }
        if (i == AUDIT_ZEROS) {
            printf("%sall zeros in %" PRIu64 " %s", separator, tensor->count[i], tensor->count[i] > 1 ? "matrices" : "matrix");
            continue;
        }
        printf("%s%" PRIu64 " %s", separator, tensor->count[i], VALUES[i]);
        if (i == AUDIT_ABSURD) {
            printf(" (up to %.3g)", (double)tensor->largest);
        } else if (i == AUDIT_TINY) {
            printf(" (down to %.3g)", (double)tensor->least);
        }
        separator = ", ";
    }
}

// "; first in layer 3, expert 5, gate, row 2, k 7"
static void put_place(const struct audit_place *place, bool has_values) {
    static const char *const PARTS[] = {[SUPPLY_GATE] = "gate", [SUPPLY_UP] = "up", [SUPPLY_DOWN] = "down"};
    printf("; first in layer %" PRIu32, place->layer);
    if (place->expert != SUPPLY_SHARED) {
        printf(", expert %" PRIu32, place->expert);
    }
    if (place->tensor <= SUPPLY_DOWN) {
        printf(", %s", PARTS[place->tensor]);
    }
    if (has_values && place->of != AUDIT_GLOBAL_SCALE) {
        printf(", row %zu, %s %zu", place->row, place->of == AUDIT_SCALE ? "group" : "k", place->at);
    }
}

static void put_tensor(const struct audited_tensor *tensor) {
    char name[2 * sizeof tensor->name], file[2 * sizeof tensor->file];
    bool has_values = false;
    for (size_t i = 0; i < AUDIT_ZEROS; i++) {
        has_values = has_values || tensor->count[i] > 0;
    }
    printf("%s %s%s%s", audited_is_unsound(tensor) ? "unsound" : "doubtful",
           tensor->name[0] ? printable_escape(tensor->name, name, sizeof name) : "generated weights", tensor->file[0] ? " in " : "",
           printable_escape(tensor->file, file, sizeof file));
    put_counts(tensor);
    put_place(&tensor->first, has_values);
    putchar('\n');
}

// Returns true if there is no unsound one.
static bool put_tensors(struct model_audit *audit) {
    size_t count;
    bool unsound;
    const struct audited_tensor *tensors = model_audit_tensors(audit, &count);
    const uint64_t omitted = model_audit_omitted(audit, &unsound);
    for (size_t i = 0; i < count; i++) {
        put_tensor(&tensors[i]);
        unsound = unsound || audited_is_unsound(&tensors[i]);
    }
    if (omitted > 0) {
        printf("unsound and doubtful tensors are listed up to %d; %" PRIu64 " more matrices have such values\n", AUDIT_TENSORS_MAX,
               omitted);
    }
    return !unsound;
}

// ---- experts with equal weights

struct expert_digest {
    uint64_t digest;
    uint32_t layer, expert;
};

static int compare_digests(const void *left, const void *right) {
    const struct expert_digest *a = left, *b = right;
    return a->digest != b->digest ? (a->digest > b->digest) - (a->digest < b->digest)
           : a->layer != b->layer ? (a->layer > b->layer) - (a->layer < b->layer)
                                  : (a->expert > b->expert) - (a->expert < b->expert);
}

static void put_equal(const struct expert_digest *first, size_t count) {
    printf("doubtful layer %" PRIu32 " expert %" PRIu32 ": all its weights are those of layer %" PRIu32 " expert %" PRIu32,
           first[0].layer, first[0].expert, first[1].layer, first[1].expert);
    if (count > 2) {
        printf(", and of %zu more", count - 2);
    }
    putchar('\n');
}

// A shard that was copied over another, or a part of one. Models that were made from a dense one begin with equal experts.
static FALLIBLE put_equal_experts(const struct model *model) {
    size_t count = 0, used = 0;
    for (size_t i = 0; i < model->num_layers; i++) {
        count += model->layers[i].params.num_experts;
    }
    struct expert_digest *all = calloc(count + 1, sizeof *all);
    if (!all) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu digests", count);
    }
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        for (uint32_t e = 0; e < layer->params.num_experts; e++) {
            all[used++] = (struct expert_digest){layer->expert_digests[e], layer->params.layer, e};
        }
    }
    qsort(all, count, sizeof *all, compare_digests);
    for (size_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && all[end].digest == all[i].digest; end++) {
        }
        if (end - i > 1) {
            put_equal(&all[i], end - i);
        }
    }
    free(all);
    return OK;
}

// Sound values with other digests are no sign of damage: the file may be of another model, or cut.
enum verdict { VERDICT_SOUND, VERDICT_DIFFERENT, VERDICT_UNSOUND };

static FALLIBLE report(const struct options *options, const struct model *model, struct model_audit *audit, enum verdict *verdict) {
    static const char *const TEXTS[] = {"sound", "different", "not sound"};
    size_t differing = 0;
    put_model(model);
    put_notes(model->notes);
    const bool sound = put_tensors(audit);
    TRY(put_equal_experts(model));
    if (options->compare_digests) {
        TRY(digest_file_compare(options->compare_digests, model, options->have_layers, &differing));
        printf("digests %s %s\n", differing == 0 ? "equal to" : "differ from", options->compare_digests);
    }
    if (options->digests) {
        TRY(digest_file_write(options->digests, model));
        printf("digests written to %s\n", options->digests);
    }
    *verdict = !sound ? VERDICT_UNSOUND : differing > 0 ? VERDICT_DIFFERENT : VERDICT_SOUND;
    puts(TEXTS[*verdict]);
    return standard_output_flush();
}

static FALLIBLE verify(const struct options *options, struct loaded *loaded, struct model_audit *audit, enum verdict *verdict) {
    TRY(prepare(options, loaded));
    TRY(options->digests ? digest_file_check_target(options->digests) : OK);
    TRY(options->compare_digests ? digest_file_check(options->compare_digests) : OK);
    TRY(load(options, loaded, audit));
    return report(options, &loaded->model, audit, verdict);
}

int examine_verify(const struct options *options) {
    struct loaded loaded = {0};
    struct model_audit *audit;
    enum verdict verdict = VERDICT_UNSOUND;
    err_t e = model_audit_create(&audit);
    e = err_is(e) ? e : verify(options, &loaded, audit, &verdict);
    if (err_is(e)) {
        fprintf(stderr, "expertd: %s\n", expertd_err_message());
    }
    loading_unload(&loaded);
    model_audit_destroy(audit);
    return err_is(e) ? err_exit_code(e.code) : verdict == VERDICT_SOUND ? 0 : EXIT_UNSOUND;
}
