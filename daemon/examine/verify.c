#include "daemon/examine/verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mapped.h"
#include "base/printable.h"
#include "base/process/standard_output.h"
#include "daemon/examine/digest_file.h"
#include "daemon/log/log.h"
#include "daemon/process/loading.h"
#include "expert/model/memory.h"
#include "expert/model/model_audit.h"
#include "expert/model/model_load.h"

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

static void put_count(uint64_t count, const char *what, const char **separator) {
    if (count > 0) {
        printf("%s%" PRIu64 " %s", *separator, count, what);
        *separator = ", ";
    }
}

static void put_tensor(const struct audited_tensor *tensor) {
    char name[2 * sizeof tensor->name], file[2 * sizeof tensor->file];
    const char *separator = ": ";
    printf("unsound %s%s%s", tensor->name[0] ? printable_escape(tensor->name, name, sizeof name) : "generated weights",
           tensor->file[0] ? " in " : "", printable_escape(tensor->file, file, sizeof file));
    put_count(tensor->nan, "NaN", &separator);
    put_count(tensor->infinite, "infinite", &separator);
    put_count(tensor->absurd, "absurd", &separator);
    if (tensor->absurd > 0) {
        printf(" (up to %.3g)", (double)tensor->largest);
    }
    putchar('\n');
}

// Returns true if there is none.
static bool put_unsound(struct model_audit *audit) {
    size_t count;
    const struct audited_tensor *tensors = model_audit_tensors(audit, &count);
    for (size_t i = 0; i < count; i++) {
        put_tensor(&tensors[i]);
    }
    if (model_audit_omitted(audit) > 0) {
        printf("unsound tensors are listed up to %d; %" PRIu64 " more matrices have such values\n", AUDIT_TENSORS_MAX,
               model_audit_omitted(audit));
    }
    return count == 0;
}

// Sound values with other digests are no sign of damage: the file may be of another model, or cut.
enum verdict { VERDICT_SOUND, VERDICT_DIFFERENT, VERDICT_UNSOUND };

static FALLIBLE report(const struct options *options, const struct model *model, struct model_audit *audit, enum verdict *verdict) {
    static const char *const TEXTS[] = {"sound", "different", "not sound"};
    size_t differing = 0;
    put_model(model);
    put_notes(model->notes);
    const bool sound = put_unsound(audit);
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
