#include "expert/checkpoint/quantisation_source.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

// The first that exists is read, as GPTQModel and vLLM do.
static const struct quantisation_file FILES[] = {
    {.name = "quantize_config.json", .object = "", .method = "gptq"},
    {.name = "quant_config.json", .object = "", .method = "awq"},
    {.name = "hf_quant_config.json", .object = "quantization", .method = "modelopt"},
};

static const struct quantisation_file *find_file(const char *folder, char path[PATH_MAX]) {
    for (size_t i = 0; folder && i < sizeof FILES / sizeof *FILES; i++) {
        int length = snprintf(path, PATH_MAX, "%s/%s", folder, FILES[i].name);
        if (length > 0 && length < PATH_MAX && access(path, F_OK) == 0) {
            return &FILES[i];
        }
    }
    return NULL;
}

FALLIBLE quantisation_source_read(struct quantisation_source *source, const struct config *config, const char *folder,
                                  struct checkpoint_notes *notes) {
    char path[PATH_MAX];
    const struct quantisation_file *known = find_file(folder, path);
    const struct config *place;
    struct quantisation_file file = known ? *known : (struct quantisation_file){0};
    err_t e = known && !source->file ? config_open(path, &source->file) : OK;
    if (err_is(e) && !quantisation_section(config, &place)) {
        return e;
    }
    if (err_is(e)) {
        checkpoint_notes_add(notes, "quantisation_file", "%s cannot be read: config.json has the same facts and is used", path);
    }
    file.config = source->file;
    TRY(quantisation_read(config, &file, &source->quantisation));
    if (source->quantisation.other_section) {
        checkpoint_notes_add(notes, "quantisation_sections",
                             "%s has a second section %s, which differs: as other programs do, %s is used alone",
                             config_path(config), source->quantisation.other_section, source->quantisation.section);
    }
    return OK;
}

void quantisation_source_deinit(struct quantisation_source *source) {
    quantisation_deinit(&source->quantisation);
    quantisation_deinit(&source->mlx);
    config_destroy(source->file);
    *source = (struct quantisation_source){0};
}
