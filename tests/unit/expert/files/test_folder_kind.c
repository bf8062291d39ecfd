// Folders and files that are given in the place of a checkpoint: the error says what they are and what to do.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/stat.h>
#include <unistd.h>

#include "expert/checkpoint/checkpoint.h"
#include "expert/files/folder_kind.h"
#include "tests/unit/expert/checkpoint/checkpoint_builder.h"

static char folder[64];

static int begin(void **state) {
    (void)state;
    strcpy(folder, "/tmp/expertd-kind-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int end(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// Writes an empty file, with its parent folders.
static void touch(const char *name) {
    char command[1200];
    snprintf(command, sizeof command, "mkdir -p \"$(dirname '%s')\" && : > '%s'", path_of(name), path_of(name));
    assert_int_equal(system(command), 0);
}

static void refuse(const char *path, const char *message) {
    struct checkpoint *c;
    assert_int_equal(checkpoint_open(path, &c).code, EXPERTD_ERR_CHECKPOINT);
    assert_null(c);
    if (!strstr(expertd_err_message(), message)) {
        fail_msg("\"%s\" does not say \"%s\"", expertd_err_message(), message);
    }
}

struct kind_case {
    const char *file, *message;
    enum folder_kind kind;
};

static const struct kind_case CASES[] = {
    {"adapter_config.json", "it is a LoRA adapter, not a model: merge it into its base model first", FOLDER_ADAPTER},
    {"adapter_model.safetensors", "it is a LoRA adapter", FOLDER_ADAPTER},
    {"adapter_model-00001-of-00002.safetensors", "it is a LoRA adapter", FOLDER_ADAPTER},
    {"adapter_model.bin", "it is a LoRA adapter", FOLDER_ADAPTER},
    {"model-Q4_K_M-00002-of-00002.gguf", "GGUF", FOLDER_GGUF},
    {"mmproj-F16.gguf", "it is the projector for images of a GGUF model, not the model", FOLDER_OTHER_FORMAT},
    {"model-00001-of-00002.safetensors.incomplete", "a download is under way or was interrupted", FOLDER_DOWNLOAD},
    {"model.safetensors.part", "a download is under way or was interrupted", FOLDER_DOWNLOAD},
    {"model.safetensors.aria2", "a download is under way or was interrupted", FOLDER_DOWNLOAD},
    {"x.crdownload", "a download is under way or was interrupted", FOLDER_DOWNLOAD},
    {".cache/huggingface/download/x=.abc.incomplete", "a download is under way or was interrupted", FOLDER_DOWNLOAD},
    {"consolidated.safetensors", "it is in the own form of Mistral", FOLDER_OTHER_FORMAT},
    {"consolidated-00001-of-00002.safetensors", "it is in the own form of", FOLDER_OTHER_FORMAT},
    {"consolidated.00.pth", "it is in the own form of", FOLDER_OTHER_FORMAT},
    {"params.json", "it is in the own form of", FOLDER_OTHER_FORMAT},
    {"model0-mp8.safetensors", "it is in the own form of", FOLDER_OTHER_FORMAT},
    {"rank0.engine", "it is an engine that was built for one kind of GPU", FOLDER_OTHER_FORMAT},
    {"model_index.json", "it is a diffusers pipeline", FOLDER_OTHER_FORMAT},
    {"pytorch_model-00001-of-00002.bin", "pickled PyTorch weights are not supported: convert", FOLDER_OTHER_FORMAT},
    {"model.onnx", "weights of this framework are not supported", FOLDER_OTHER_FORMAT},
    {"tf_model.h5", "weights of this framework are not supported", FOLDER_OTHER_FORMAT},
    {"train-00000-of-00001.parquet", "it is a data set", FOLDER_OTHER_FORMAT},
    {"model.tar.gz", "archives are not read", FOLDER_OTHER_FORMAT},
    {"tokenizer.json", "it holds a tokenizer, but no model", FOLDER_PARTS},
    {"output.safetensors", "its index is missing", FOLDER_PARTS},
};

static void the_kind_is_told_with_and_without_a_config(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct folder_finding found;
        touch(CASES[i].file);
        folder_kind_find(folder, &found);
        assert_int_equal(found.kind, CASES[i].kind);
        refuse(folder, CASES[i].message);
        const char *name = strrchr(CASES[i].file, '/') ? strrchr(CASES[i].file, '/') + 1 : CASES[i].file;
        assert_non_null(strstr(expertd_err_message(), name));
        assert_non_null(strstr(expertd_err_message(), "has no config.json"));
        builder_write_text(folder, "config.json", "{}");
        refuse(folder, CASES[i].message);
        assert_non_null(strstr(expertd_err_message(), name));
        unlink(path_of("config.json"));
        unlink(path_of(CASES[i].file));
    }
}

static void a_model_beside_other_files_is_opened(void **state) {
    (void)state;
    struct checkpoint *c;
    struct builder builder = {0};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        touch(CASES[i].file);
    }
    builder_add(&builder, "a", EXPERTD_DTYPE_F32, 1, 1, 2);
    builder_write(&builder, 0, 1, folder, "model.safetensors");
    builder_clear(&builder);
    builder_write_text(folder, "config.json", "{}");
    assert_false(err_is(checkpoint_open(folder, &c)));
    checkpoint_close(c);
}

static void only_files_of_pytorch_count_as_pickled(void **state) {
    (void)state;
    struct folder_finding found;
    touch("firmware.bin");
    folder_kind_find(folder, &found);
    assert_int_equal(found.kind, FOLDER_UNKNOWN);
    touch("model.bin");
    folder_kind_find(folder, &found);
    assert_int_equal(found.kind, FOLDER_OTHER_FORMAT);
    assert_string_equal(found.name, "model.bin");
}

static void a_gguf_model_counts_before_its_projector(void **state) {
    (void)state;
    touch("mmproj-F16.gguf");
    touch("m-Q8_0.gguf");
    touch("model.safetensors");
    refuse(folder,
           "has a GGUF model (m-Q8_0.gguf) and safetensors files (model.safetensors), but no config.json: name the .gguf file");
}

static void weights_without_a_config_say_what_is_missing(void **state) {
    (void)state;
    touch("model.safetensors");
    refuse(folder, "has no config.json, but model.safetensors: the weights are here and config.json is not: download config.json");
}

static void a_file_in_the_place_of_a_folder_names_the_folder(void **state) {
    (void)state;
    char wanted[160];
    snprintf(wanted, sizeof wanted, "is not a folder: name the folder that holds config.json and the weights, such as %s", folder);
    touch("x.safetensors");
    refuse(path_of("x.safetensors"), "is not a folder: name the folder that holds config.json and the weights");
    assert_null(strstr(expertd_err_message(), "such as"));
    touch("m.tar");
    refuse(path_of("m.tar"), "m.tar is not a folder: archives are not read: unpack it");
    static const char *const FILES[] = {"config.json", "model.safetensors", "model.safetensors.index.json", "anything"};
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        touch(FILES[i]);
        refuse(path_of(FILES[i]), wanted);
    }
    touch("m.gguf");
    refuse(path_of("m.gguf"), "m.gguf: it does not begin with \"GGUF\": it is not a GGUF file");
}

static void a_path_that_does_not_exist_names_the_nearest_folder(void **state) {
    (void)state;
    char wanted[160];
    snprintf(wanted, sizeof wanted, "No such file or directory: the nearest folder that exists is %s", folder);
    refuse(path_of("absent"), wanted);
    refuse(path_of("absent/below/model"), wanted);
    refuse("/absent-folder/model", "the nearest folder that exists is /");
    touch("file");
    refuse(path_of("file/model"), "Not a directory: the nearest folder that exists is");
}

static void a_folder_above_checkpoints_names_them(void **state) {
    (void)state;
    refuse(folder, "is an empty folder");
    touch("a/config.json");
    refuse(folder, "has no config.json, but its subfolder has: a: name that folder");
    touch("b/config.json");
    touch("c/config.json");
    touch("d/config.json");
    refuse(folder, "its subfolders have: a, b, c, ...: name one of them");
    touch("tokenizer.json");
    refuse(folder, "its subfolders have: a, b, c, ...: name one of them");
    touch("model_index.json");
    refuse(folder, "it is a diffusers pipeline"); // its parts have a config.json each
}

static void what_lies_further_below_is_named(void **state) {
    (void)state;
    char wanted[256];
    touch("org/repo/model.gguf");
    snprintf(wanted, sizeof wanted, "has no config.json, but a folder below has GGUF files: name %s/org/repo", folder);
    refuse(folder, wanted);
    touch("org/tiny/config.json");
    snprintf(wanted, sizeof wanted, "has no config.json, but a folder below has: name %s/org/tiny", folder);
    refuse(folder, wanted);
}

static void folders_of_a_hub_cache_say_how_to_name_the_model(void **state) {
    (void)state;
    char wanted[256];
    touch("home/hub/models--org--my--name/snapshots/0123/config.json");
    touch("home/hub/models--org--my--name/refs/main");
    snprintf(wanted, sizeof wanted, "use --model org/my--name with --hf-cache %s/home/hub, or name a folder below snapshots (0123)",
             folder);
    refuse(path_of("home/hub/models--org--my--name"), wanted);
    snprintf(wanted, sizeof wanted, "is a Hugging Face cache, not a checkpoint: use --hf-cache %s/home/hub --model org/my--name",
             folder);
    refuse(path_of("home/hub"), wanted);
    snprintf(wanted, sizeof wanted, "use --hf-cache %s/home/hub --model ORG/NAME", folder);
    refuse(path_of("home"), wanted);
    touch("copy/snapshots/0123/config.json");
    refuse(path_of("copy"), "name a folder below snapshots (0123), or ORG/NAME");
    touch("datasets--org--name/snapshots/0123/README.md");
    refuse(path_of("datasets--org--name"), "is a data set in a Hugging Face cache");
}

static void an_unfinished_download_in_the_cache_is_named(void **state) {
    (void)state;
    touch("models--o--n/blobs/abc.incomplete");
    touch("models--o--n/snapshots/0123/tokenizer.json");
    refuse(path_of("models--o--n/snapshots/0123"), "but abc.incomplete: a download is under way or was interrupted");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_kind_is_told_with_and_without_a_config),
        TEST(a_model_beside_other_files_is_opened),
        TEST(only_files_of_pytorch_count_as_pickled),
        TEST(a_gguf_model_counts_before_its_projector),
        TEST(weights_without_a_config_say_what_is_missing),
        TEST(a_file_in_the_place_of_a_folder_names_the_folder),
        TEST(a_path_that_does_not_exist_names_the_nearest_folder),
        TEST(a_folder_above_checkpoints_names_them),
        TEST(what_lies_further_below_is_named),
        TEST(folders_of_a_hub_cache_say_how_to_name_the_model),
        TEST(an_unfinished_download_in_the_cache_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
