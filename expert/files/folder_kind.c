#include "expert/files/folder_kind.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_magic.h"
#include "base/regular_file.h"

struct row {
    enum folder_kind kind;
    const char *subfolder; // NULL: the folder itself
    const char *pattern;   // of a file's name, as fnmatch takes it
    const char *what, *mend;
};

#define ADAPTER                                                                                                                    \
    "it is a LoRA adapter, not a model", "merge it into its base model first (in peft: merge_and_unload), and serve the result"
#define UNFINISHED "a download is under way or was interrupted", "finish it first (`hf download` resumes it)"
#define GGUF "it is of a GGUF model", "name the model's file, of a model in several parts the first, -00001-of-..."
#define PROJECTOR "it is the projector for images of a GGUF model, not the model", "download the language model's .gguf file too"
#define VENDOR(name)                                                                                                               \
    "it is in the own form of " name,                                                                                              \
        "use the checkpoint of the same model in the form of transformers (config.json, model.safetensors)"
#define PICKLED "pickled PyTorch weights are not supported", "convert them to safetensors"
#define ENGINE "it is an engine that was built for one kind of GPU", "use the checkpoint that it was built from"
#define OF(name) "it is " name ", which is not supported", "use the model's safetensors"
#define SPLIT "it is one piece of a file that was cut", "join the pieces with cat, in order, into one file"
#define DATA_SET "it is a data set, not a model", "name a model's folder"
#define ARCHIVE "archives are not read", "unpack it and name the folder that holds config.json"
#define DEEPSPEED                                                                                                                  \
    "it is a training checkpoint of DeepSpeed", "convert it with `python zero_to_fp32.py . OUTPUT --safe_serialization`"
#define DISTRIBUTED                                                                                                                \
    "it is a distributed checkpoint of PyTorch (FSDP, TorchTitan), which is not supported",                                        \
        "convert it to the form of transformers, with the trainer's own export, or dcp_to_torch_save and then safetensors"
#define MEGATRON                                                                                                                   \
    "it is a training checkpoint of Megatron or NeMo, which is not supported",                                                     \
        "export it to the form of transformers (AutoBridge.export_ckpt of Megatron Bridge)"
#define OPENVINO "it is a model converted for OpenVINO, which is not supported", "use the checkpoint that it was converted from"
#define CONVERTED(name)                                                                                                            \
    "it is a model converted for " name ", which is not supported", "use the checkpoint that it was converted from"

// The first row that matches counts, so that the rows that say most come first.
static const struct row ROWS[] = {
    {FOLDER_ADAPTER, NULL, "adapter_config.json", ADAPTER},
    {FOLDER_ADAPTER, NULL, "adapter_model*.safetensors", ADAPTER},
    {FOLDER_ADAPTER, NULL, "adapter_model*.bin", ADAPTER},
    {FOLDER_ADAPTER, NULL, "adapters.safetensors", ADAPTER},
    {FOLDER_OTHER_FORMAT, NULL, "*.part[0-9]*of[0-9]*", SPLIT},
    {FOLDER_OTHER_FORMAT, NULL, "*-split-[a-z0-9]*", SPLIT},
    {FOLDER_DOWNLOAD, NULL, "*.incomplete", UNFINISHED},
    {FOLDER_DOWNLOAD, NULL, "*.part", UNFINISHED},
    {FOLDER_DOWNLOAD, NULL, "*.partial", UNFINISHED},
    {FOLDER_DOWNLOAD, NULL, "*.aria2", UNFINISHED},
    {FOLDER_DOWNLOAD, NULL, "*.crdownload", UNFINISHED},
    {FOLDER_DOWNLOAD, NULL, "*.download", UNFINISHED},
    {FOLDER_DOWNLOAD, NULL, "*.!qB", UNFINISHED},
    {FOLDER_DOWNLOAD, ".cache/huggingface/download", "*.incomplete", UNFINISHED},
    {FOLDER_DOWNLOAD, "../../blobs", "*.incomplete", UNFINISHED}, // of a snapshot in a cache
    {FOLDER_GGUF, NULL, "[!m]*.gguf", GGUF},
    {FOLDER_GGUF, NULL, "m[!m]*.gguf", GGUF},
    {FOLDER_OTHER_FORMAT, NULL, "mmproj*.gguf", PROJECTOR},
    {FOLDER_GGUF, NULL, "*.gguf", GGUF},
    {FOLDER_PARTS, NULL, "consolidated*.safetensors", "it holds weights in Mistral's own form, and params.json is not there",
     "download params.json too"},
    {FOLDER_OTHER_FORMAT, NULL, "consolidated*.pth", VENDOR("Meta or Mistral")},
    {FOLDER_OTHER_FORMAT, NULL, "params.json",
     "it is of a model in Mistral's or Meta's own form, and no consolidated*.safetensors are there",
     "download them too (weights in .pth files are not read)"},
    {FOLDER_OTHER_FORMAT, NULL, "model*-mp*.safetensors", VENDOR("DeepSeek's inference code")},
    {FOLDER_OTHER_FORMAT, NULL, "ckpt-[0-9]*", VENDOR("xAI")},
    {FOLDER_OTHER_FORMAT, NULL, "rank[0-9]*.engine", ENGINE},
    {FOLDER_OTHER_FORMAT, NULL, "*.engine", ENGINE},
    {FOLDER_OTHER_FORMAT, NULL, "*.plan", ENGINE},
    {FOLDER_OTHER_FORMAT, NULL, "rank[0-9]*.safetensors", CONVERTED("TensorRT-LLM")},
    {FOLDER_OTHER_FORMAT, NULL, "model-rank-*-part-*.safetensors", CONVERTED("vLLM (sharded_state)")},
    {FOLDER_OTHER_FORMAT, NULL, "*.tensors", CONVERTED("tensorizer")},
    {FOLDER_OTHER_FORMAT, NULL, "openvino*.xml", OPENVINO},
    {FOLDER_OTHER_FORMAT, NULL, "openvino*.bin", OPENVINO},
    {FOLDER_OTHER_FORMAT, NULL, "shared_vocabulary.*", CONVERTED("CTranslate2")},
    {FOLDER_OTHER_FORMAT, NULL, "mlc-chat-config.json", CONVERTED("MLC-LLM")},
    {FOLDER_OTHER_FORMAT, NULL, "params_shard_[0-9]*.bin", CONVERTED("MLC-LLM")},
    {FOLDER_OTHER_FORMAT, NULL, "genai_config.json", CONVERTED("ONNX Runtime GenAI")},
    {FOLDER_OTHER_FORMAT, NULL, "*.mlpackage", CONVERTED("Core ML")},
    {FOLDER_OTHER_FORMAT, NULL, "*.mlmodel*", CONVERTED("Core ML")},
    {FOLDER_OTHER_FORMAT, NULL, "*.pte", CONVERTED("ExecuTorch")},
    {FOLDER_OTHER_FORMAT, NULL, "*.tflite", CONVERTED("TensorFlow Lite")},
    {FOLDER_OTHER_FORMAT, NULL, "*.task", CONVERTED("MediaPipe")},
    {FOLDER_OTHER_FORMAT, NULL, "*.litertlm", CONVERTED("LiteRT")},
    {FOLDER_OTHER_FORMAT, NULL, "*.mnn", CONVERTED("MNN")},
    {FOLDER_OTHER_FORMAT, NULL, "*.rkllm", CONVERTED("Rockchip's NPUs")},
    {FOLDER_OTHER_FORMAT, NULL, "*.llamafile", "it is a llamafile, a program with a GGUF model in it",
     "extract the model with `unzip`, or download its .gguf file"},
    {FOLDER_OTHER_FORMAT, NULL, "model_index.json", "it is a diffusers pipeline, not a language model",
     "name a language model's folder"},
    {FOLDER_OTHER_FORMAT, NULL, "*.safetensors.part*", UNFINISHED},
    {FOLDER_PARTS, NULL, "model.safetensors", "the weights are here and config.json is not", "download config.json too"},
    {FOLDER_PARTS, NULL, "model.safetensors.index.json", "the index is here and config.json is not", "download config.json too"},
    {FOLDER_PARTS, NULL, "*.safetensors", "its index is missing",
     "download it, or name the file model.safetensors if it is the complete model"},
    {FOLDER_OTHER_FORMAT, NULL, "zero_to_fp32.py", DEEPSPEED},
    {FOLDER_OTHER_FORMAT, NULL, "*zero_pp_rank_*", DEEPSPEED},
    {FOLDER_OTHER_FORMAT, NULL, "mp_rank_*_model_states.pt", DEEPSPEED},
    {FOLDER_OTHER_FORMAT, NULL, "global_step[0-9]*", DEEPSPEED},
    {FOLDER_OTHER_FORMAT, NULL, "latest_checkpointed_iteration.txt", MEGATRON},
    {FOLDER_OTHER_FORMAT, NULL, "iter_[0-9]*", MEGATRON},
    {FOLDER_OTHER_FORMAT, NULL, "mp_rank_[0-9]*", MEGATRON},
    {FOLDER_OTHER_FORMAT, NULL, "*.nemo", MEGATRON},
    {FOLDER_OTHER_FORMAT, NULL, "*.distcp", DISTRIBUTED},
    {FOLDER_OTHER_FORMAT, NULL, "pytorch_model_fsdp*", DISTRIBUTED},
    {FOLDER_OTHER_FORMAT, NULL, "pytorch_model*.bin", PICKLED},
    {FOLDER_OTHER_FORMAT, NULL, "pytorch_model.bin.index.json", PICKLED},
    {FOLDER_OTHER_FORMAT, NULL, "model*.bin", PICKLED},
    {FOLDER_OTHER_FORMAT, NULL, "*.pth", PICKLED},
    {FOLDER_OTHER_FORMAT, NULL, "*.pt", PICKLED},
    {FOLDER_OTHER_FORMAT, NULL, ".metadata", DISTRIBUTED},
    {FOLDER_OTHER_FORMAT, NULL, "_CHECKPOINT_METADATA", OF("an Orbax checkpoint of JAX")},
    {FOLDER_OTHER_FORMAT, NULL, "manifest.ocdbt", OF("an Orbax checkpoint of JAX")},
    {FOLDER_OTHER_FORMAT, NULL, "ocdbt.process_*", OF("an Orbax checkpoint of JAX")},
    {FOLDER_OTHER_FORMAT, NULL, "*.onnx", OF("an ONNX model")},
    {FOLDER_OTHER_FORMAT, "onnx", "*.onnx", OF("an ONNX model")},
    {FOLDER_OTHER_FORMAT, NULL, "*.onnx[_.]data", OF("an ONNX model")},
    {FOLDER_OTHER_FORMAT, NULL, "*.h5", OF("a model of Keras or TensorFlow")},
    {FOLDER_OTHER_FORMAT, NULL, "*.keras", OF("a model of Keras or TensorFlow")},
    {FOLDER_OTHER_FORMAT, NULL, "*.msgpack", OF("a model of Flax")},
    {FOLDER_OTHER_FORMAT, NULL, "*.ckpt*", OF("a checkpoint of TensorFlow or PyTorch Lightning")},
    {FOLDER_OTHER_FORMAT, NULL, "*.data-[0-9]*-of-[0-9]*", OF("a checkpoint of TensorFlow")},
    {FOLDER_OTHER_FORMAT, NULL, "saved_model.pb", OF("a model of TensorFlow")},
    {FOLDER_OTHER_FORMAT, NULL, "*.pdparams", OF("a model of PaddlePaddle")},
    {FOLDER_OTHER_FORMAT, NULL, "*.npz", OF("an archive of NumPy arrays")},
    {FOLDER_OTHER_FORMAT, "manifests/registry.ollama.ai", "[!.]*", "it is Ollama's store of models",
     "name one model's file in blobs, which `ollama show MODEL --modelfile` prints after FROM"},
    {FOLDER_OTHER_FORMAT, NULL, "*.parquet", DATA_SET},
    {FOLDER_OTHER_FORMAT, NULL, "*.arrow", DATA_SET},
    {FOLDER_OTHER_FORMAT, NULL, "dataset_info*.json", DATA_SET},
    {FOLDER_OTHER_FORMAT, NULL, "*.tar", ARCHIVE},
    {FOLDER_OTHER_FORMAT, NULL, "*.tar.*", ARCHIVE},
    {FOLDER_OTHER_FORMAT, NULL, "*.tgz", ARCHIVE},
    {FOLDER_OTHER_FORMAT, NULL, "*.zip", ARCHIVE},
    {FOLDER_OTHER_FORMAT, NULL, "*.7z", ARCHIVE},
    {FOLDER_OTHER_FORMAT, NULL, "*.rar", ARCHIVE},
    {FOLDER_OTHER_FORMAT, NULL, "*.gz", ARCHIVE},
    {FOLDER_OTHER_FORMAT, NULL, "*.zst", ARCHIVE},
    {FOLDER_OTHER_FORMAT, NULL, "*.xz", ARCHIVE},
    {FOLDER_PARTS, NULL, "tokenizer*", "it holds a tokenizer, but no model", "download the complete model"},
};
enum { ROW_COUNT = sizeof ROWS / sizeof *ROWS };

bool folder_exists(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

// Does the row match the name of a file, or of a folder itself? Rows of subfolders match no name.
static bool matches(const struct row *row, const char *subfolder, const char *name) {
    bool here = subfolder ? row->subfolder && strcmp(row->subfolder, subfolder) == 0 : !row->subfolder;
    return here && fnmatch(row->pattern, name, 0) == 0;
}

// Notes a file whose row comes before the best one so far. *best: the number of that row, ROW_COUNT: none.
static void note_name(const char *subfolder, const char *file, size_t *best, char name[NAME_MAX + 1]) {
    for (size_t i = 0; i <= *best && i < ROW_COUNT; i++) {
        if (matches(&ROWS[i], subfolder, file)) {
            if (i < *best || strcmp(file, name) < 0) {
                snprintf(name, NAME_MAX + 1, "%s", file);
            }
            *best = i;
            return;
        }
    }
}

static void note_folder(const char *path, const char *subfolder, size_t *best, char name[NAME_MAX + 1]) {
    char folder[PATH_MAX];
    int length = snprintf(folder, sizeof folder, "%s/%s", path, subfolder ? subfolder : ".");
    DIR *dir = length < (int)sizeof folder ? opendir(folder) : NULL;
    for (const struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir)) {
        note_name(subfolder, d->d_name, best, name);
    }
    if (dir) {
        closedir(dir);
    }
}

// ---- by content ----

// Pages that may lie beside a model: their content is what their name says.
static bool is_page(const char *name) {
    static const char *const PAGES[] = {"*.html", "*.htm", "*.xml", "*.svg", "*.md", "*.txt"};
    bool page = false;
    for (size_t i = 0; i < sizeof PAGES / sizeof *PAGES; i++) {
        page = page || fnmatch(PAGES[i], name, FNM_CASEFOLD) == 0;
    }
    return page;
}

// The content of a file, which may be another than its name says. False: it is not recognised, or is no regular file.
static bool note_content(const char *file, struct folder_finding *out) {
    char bytes[FILE_MAGIC_BYTES];
    uint64_t size;
    int fd;
    if (is_page(basename(file)) || err_is(regular_file_open(file, &fd, &size))) {
        return false;
    }
    ssize_t length = pread(fd, bytes, sizeof bytes, 0);
    close(fd);
    const struct file_magic *magic = length > 0 ? file_magic_find(bytes, (size_t)length) : NULL;
    if (magic) {
        out->kind = FOLDER_OTHER_FORMAT;
        out->what = magic->what;
        out->mend = magic->mend;
        snprintf(out->name, sizeof out->name, "%s", basename(file));
    }
    return magic != NULL;
}

enum { FILES_READ_MAX = 256 };

// The content of the file whose name was found says more than the name; without one, the first file that is recognised counts.
static void note_contents(const char *folder, struct folder_finding *out) {
    struct dirent **entries = NULL;
    char file[PATH_MAX];
    bool found = out->kind == FOLDER_OTHER_FORMAT;
    if (found && snprintf(file, sizeof file, "%s/%s", folder, out->name) < (int)sizeof file) {
        (void)note_content(file, out);
    }
    int all = found ? 0 : scandir(folder, &entries, NULL, alphasort);
    for (int i = 0, read = 0; i < all; i++) {
        if (!found && read < FILES_READ_MAX && entries[i]->d_name[0] != '.' &&
            snprintf(file, sizeof file, "%s/%s", folder, entries[i]->d_name) < (int)sizeof file) {
            found = note_content(file, out);
            read++;
        }
        free(entries[i]);
    }
    free(entries);
}

// ---- the kind ----

void folder_kind_find(const char *path, struct folder_finding *out) {
    size_t best = ROW_COUNT;
    *out = (struct folder_finding){.kind = FOLDER_UNKNOWN};
    bool is_folder = folder_exists(path);
    if (is_folder) {
        note_folder(path, NULL, &best, out->name);
        for (size_t i = 0; i < best; i++) {
            if (ROWS[i].subfolder) {
                note_folder(path, ROWS[i].subfolder, &best, out->name);
            }
        }
    } else {
        note_name(NULL, basename(path), &best, out->name);
    }
    if (best < ROW_COUNT) {
        out->kind = ROWS[best].kind;
        out->what = ROWS[best].what;
        out->mend = ROWS[best].mend;
    }
    if (out->kind == FOLDER_UNKNOWN || out->kind == FOLDER_OTHER_FORMAT || out->kind == FOLDER_PARTS) {
        is_folder ? note_contents(path, out) : (void)note_content(path, out);
    }
}

bool folder_has_download(const char *path, char name[NAME_MAX + 1]) {
    for (size_t i = 0; i < ROW_COUNT; i++) {
        size_t best = ROW_COUNT;
        if (ROWS[i].kind == FOLDER_DOWNLOAD) {
            note_folder(path, ROWS[i].subfolder, &best, name);
            if (best < ROW_COUNT && ROWS[best].kind == FOLDER_DOWNLOAD) {
                return true;
            }
        }
    }
    return false;
}

// The suffix is what follows the '*' of a row for downloads.
bool folder_control_file(const char *file, char control[PATH_MAX]) {
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (ROWS[i].kind == FOLDER_DOWNLOAD && !ROWS[i].subfolder) {
            int length = snprintf(control, PATH_MAX, "%s%s", file, ROWS[i].pattern + 1);
            if (length > 0 && length < PATH_MAX && access(control, F_OK) == 0) {
                return true;
            }
        }
    }
    return false;
}
