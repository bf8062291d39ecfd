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
    {"consolidated.safetensors", "weights in Mistral's own form, and params.json is not there", FOLDER_PARTS},
    {"consolidated-00001-of-00002.safetensors", "download params.json too", FOLDER_PARTS},
    {"consolidated.00.pth", "it is in the own form of", FOLDER_OTHER_FORMAT},
    {"params.json", "no consolidated*.safetensors are there: download them too", FOLDER_OTHER_FORMAT},
    {"model0-mp8.safetensors", "it is in the own form of", FOLDER_OTHER_FORMAT},
    {"rank0.engine", "it is an engine that was built for one kind of GPU", FOLDER_OTHER_FORMAT},
    {"model_index.json", "it is a diffusers pipeline", FOLDER_OTHER_FORMAT},
    {"pytorch_model-00001-of-00002.bin", "pickled PyTorch weights are not supported: convert", FOLDER_OTHER_FORMAT},
    {"model.onnx", "it is an ONNX model, which is not supported: use the model's safetensors", FOLDER_OTHER_FORMAT},
    {"onnx/model_q4.onnx", "it is an ONNX model", FOLDER_OTHER_FORMAT},
    {"model.onnx_data", "it is an ONNX model", FOLDER_OTHER_FORMAT},
    {"tf_model.h5", "it is a model of Keras or TensorFlow", FOLDER_OTHER_FORMAT},
    {"model.ckpt-500.index", "it is a checkpoint of TensorFlow or PyTorch Lightning", FOLDER_OTHER_FORMAT},
    {"variables.data-00000-of-00001", "it is a checkpoint of TensorFlow", FOLDER_OTHER_FORMAT},
    {"flax_model.msgpack", "it is a model of Flax", FOLDER_OTHER_FORMAT},
    {"_CHECKPOINT_METADATA", "it is an Orbax checkpoint of JAX", FOLDER_OTHER_FORMAT},
    {"ocdbt.process_0/d", "it is an Orbax checkpoint of JAX", FOLDER_OTHER_FORMAT},
    {"openvino_model.xml", "it is a model converted for OpenVINO, which is not supported: use the checkpoint", FOLDER_OTHER_FORMAT},
    {"openvino_language_model.bin", "it is a model converted for OpenVINO", FOLDER_OTHER_FORMAT},
    {"rank0.safetensors", "it is a model converted for TensorRT-LLM", FOLDER_OTHER_FORMAT},
    {"model-rank-0-part-0.safetensors", "it is a model converted for vLLM (sharded_state)", FOLDER_OTHER_FORMAT},
    {"mlc-chat-config.json", "it is a model converted for MLC-LLM", FOLDER_OTHER_FORMAT},
    {"shared_vocabulary.json", "it is a model converted for CTranslate2", FOLDER_OTHER_FORMAT},
    {"model.tensors", "it is a model converted for tensorizer", FOLDER_OTHER_FORMAT},
    {"zero_to_fp32.py", "it is a training checkpoint of DeepSpeed: convert it with `python zero_to_fp32.py", FOLDER_OTHER_FORMAT},
    {"global_step500/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "it is a training checkpoint of DeepSpeed",
     FOLDER_OTHER_FORMAT},
    {"mp_rank_00_model_states.pt", "it is a training checkpoint of DeepSpeed", FOLDER_OTHER_FORMAT},
    {"latest_checkpointed_iteration.txt", "it is a training checkpoint of Megatron or NeMo", FOLDER_OTHER_FORMAT},
    {"iter_0000500/mp_rank_00/model_optim_rng.pt", "it is a training checkpoint of Megatron or NeMo", FOLDER_OTHER_FORMAT},
    {"model.nemo", "it is a training checkpoint of Megatron or NeMo", FOLDER_OTHER_FORMAT},
    {"__0_0.distcp", "it is a distributed checkpoint of PyTorch (FSDP, TorchTitan)", FOLDER_OTHER_FORMAT},
    {".metadata", "it is a distributed checkpoint of PyTorch", FOLDER_OTHER_FORMAT},
    {"pytorch_model_fsdp_0/__0_0.distcp", "it is a distributed checkpoint of PyTorch", FOLDER_OTHER_FORMAT},
    {"model.gguf.part1of2", "it is one piece of a file that was cut: join the pieces with cat", FOLDER_OTHER_FORMAT},
    {"model.gguf-split-a", "it is one piece of a file that was cut", FOLDER_OTHER_FORMAT},
    {"model.gguf.part", "a download is under way or was interrupted", FOLDER_DOWNLOAD},
    {"manifests/registry.ollama.ai/library/x/latest", "it is Ollama's store of models: name one model's file in blobs",
     FOLDER_OTHER_FORMAT},
    {"model.llamafile", "it is a llamafile, a program with a GGUF model in it", FOLDER_OTHER_FORMAT},
    {"model.safetensors.zst", "archives are not read", FOLDER_OTHER_FORMAT},
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
        const char *name = found.name; // the file, or the folder that holds it
        assert_non_null(strstr(CASES[i].file, name));
        assert_non_null(strstr(expertd_err_message(), name));
        assert_non_null(strstr(expertd_err_message(), "has no config.json"));
        builder_write_text(folder, "config.json", "{}");
        refuse(folder, CASES[i].message);
        assert_non_null(strstr(expertd_err_message(), name));
        end(NULL);
        mkdir(folder, 0700);
    }
}

// Names that say nothing, or something else, and the beginning of the file.
static const struct {
    const char *name;
    const char *bytes;
    size_t length;
    const char *message;
} CONTENTS[] = {
    {"ggml-model-q4_0.bin", "tjgg\3\0\0\0", 8, "it is a file of llama.cpp from before GGUF (2023): convert the original"},
    {"weights", "lmgg\0\0\0\0", 8, "it is a file of llama.cpp from before GGUF (2023)"},
    {"model.bin", "fmgg\1\0\0\0", 8, "it is a file of llama.cpp from before GGUF (2023)"},
    {"lora.bin", "algg\1\0\0\0", 8, "it is a LoRA adapter of llama.cpp"},
    {"model.safetensors", "<!DOCTYPE html><html>", 21, "it is an HTML page, not the file itself: download it again"},
    {"weights.safetensors", "\n <HTML>\n", 9, "it is an HTML page"},
    {"model.safetensors", "<?xml version='1.0'?><Error>", 28, "it is an XML document, such as an error of a storage service"},
    {"model-00001-of-00001.safetensors", "version https://git-lfs.github.com/spec/v1\n", 43, "it is a Git LFS pointer"},
    {"model.safetensors", "# xet version 0\nfilesize = 5\n", 30, "it is a pointer of git-xet"},
    {"weights", "PK\3\4..........................archive/data.pkl", 46, "it is a pickle of PyTorch"},
    {"model.safetensors", "PK\3\4..........", 14, "it is a zip archive: unpack it"},
    {"model.safetensors", "\x1f\x8b\x08\0\0\0\0\0", 8, "it is compressed (gzip): unpack it"},
    {"model.dat", "\x89HDF\r\n\x1a\n", 8, "it is an HDF5 file"},
    {"tokenizer.bin", "\x93NUMPY\1\0", 8, "it is an array of NumPy"},
};

static void write_bytes(const char *name, const char *bytes, size_t length) {
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static void the_content_says_more_than_the_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof CONTENTS / sizeof *CONTENTS; i++) {
        write_bytes(CONTENTS[i].name, CONTENTS[i].bytes, CONTENTS[i].length);
        refuse(folder, CONTENTS[i].message);
        assert_non_null(strstr(expertd_err_message(), CONTENTS[i].name));
        refuse(path_of(CONTENTS[i].name), CONTENTS[i].message); // the file alone
        builder_write_text(folder, "config.json", "{}");
        refuse(folder, CONTENTS[i].message);
        assert_non_null(strstr(expertd_err_message(), CONTENTS[i].name));
        unlink(path_of("config.json"));
        unlink(path_of(CONTENTS[i].name));
    }
    builder_write_text(folder, "index.html", "<html>"); // a page beside a model is one
    refuse(folder, "has no config.json: it is not a checkpoint, or the download is incomplete");
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
        TEST(the_content_says_more_than_the_name),
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
