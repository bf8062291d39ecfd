#include "expert/quantised/quantised_foreign.h"

#include <string.h>

#define OTHER_CODES "take the model's BF16 checkpoint, or one in FP8, INT8, INT4, MXFP8, MXFP4 or NVFP4"

// Sources: the quantisers' own code. Suffixes are in the spelling of quantised_names.h.
static const struct foreign_tensor {
    const char *suffix, *quantiser, *mend;
} TENSORS[] = {
    {".biases", "MLX's affine quantisation (code x scale + bias)", "take the original checkpoint that was converted for MLX"},
    {".weight.absmax", "bitsandbytes (4 bits)", OTHER_CODES},
    {".weight.quant_map", "bitsandbytes (4 bits)", OTHER_CODES},
    {".SCB", "bitsandbytes (LLM.int8)", OTHER_CODES},
    {".codebooks", "AQLM", OTHER_CODES},
    {".W_q", "HQQ", OTHER_CODES},
    {".weight_scales", "EETQ", OTHER_CODES},
    {".Qidxs", "QuIP#", OTHER_CODES},
    {".centroids", "VPTQ", OTHER_CODES},
    {".q_weight", "EXL2", OTHER_CODES},
    {".trellis", "EXL3", OTHER_CODES},
    {".tables2", "HIGGS", OTHER_CODES},
    {".lookup_table", "SqueezeLLM", OTHER_CODES},
    {".weight._data", "optimum-quanto", OTHER_CODES},
    {"._weight_qdata", "torchao", OTHER_CODES},
    {".B", "Marlin, a kernel's own layout", "take the GPTQ checkpoint that it was repacked from"},
    {".scale_packed", "compressed-tensors' marlin-24 (2:4 sparse)", OTHER_CODES},
    {".bitmask", "compressed-tensors' sparse layout", OTHER_CODES},
    {".pre_quant_scale", "AWQ of ModelOpt, which also scales the inputs", "take a checkpoint without pre_quant_scale"},
    {".smooth_scale", "SmoothQuant, which also scales the inputs", "take a checkpoint without smooth_scale"},
    {".had_K", "a rotation of the inputs (SpinQuant, QuaRot)", "take a checkpoint without online rotations"},
    {".had_scale", "a rotation of the inputs (SpinQuant, QuaRot)", "take a checkpoint without online rotations"},
    {".forward_hadamard_matrix", "FP-Quant, which rotates the inputs", "take a checkpoint without rotations"},
    {".hadamard_matrix", "a rotation of the inputs", "take a checkpoint without online rotations"},
};

// Methods whose codes have another meaning than the formats of the table, if the tensors look the same.
static const struct foreign_method {
    const char *method, *quantiser;
} METHODS[] = {
    {"bitsandbytes", "bitsandbytes"},
    {"aqlm", "AQLM"},
    {"hqq", "HQQ"},
    {"eetq", "EETQ"},
    {"quip", "QuIP"},
    {"vptq", "VPTQ"},
    {"exl2", "EXL2"},
    {"exl3", "EXL3"},
    {"higgs", "HIGGS"},
    {"spqr", "SpQR"},
    {"bitnet", "BitNet"},
    {"quanto", "optimum-quanto"},
    {"torchao", "torchao"},
    {"fp_quant", "FP-Quant"},
    {"marlin", "Marlin"},
    {"squeezellm", "SqueezeLLM"},
    {"spinquant", "SpinQuant"},
    {"quarot", "QuaRot"},
};

FALLIBLE quantised_check_foreign(const struct tensor_finder *finder, const struct quantised_names *names) {
    for (size_t i = 0; i < sizeof TENSORS / sizeof *TENSORS; i++) {
        const struct safetensors_entry *entry = quantised_named(names, TENSORS[i].suffix);
        if (entry) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: tensor %s is of %s, which is not supported: %s",
                 checkpoint_file_of(finder->checkpoint, entry), entry->name, TENSORS[i].quantiser, TENSORS[i].mend);
        }
    }
    return OK;
}

FALLIBLE quantised_check_method(const struct tensor_finder *finder, const struct quantisation *config,
                                const struct safetensors_entry *codes, const char *format) {
    for (size_t i = 0; i < sizeof METHODS / sizeof *METHODS; i++) {
        if (strcmp(config->method, METHODS[i].method) == 0) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s: tensor %s looks like %s, but %s.quant_method is \"%s\", and the codes of %s have another "
                 "meaning: " OTHER_CODES,
                 checkpoint_file_of(finder->checkpoint, codes), codes->name, format, config->section, config->method,
                 METHODS[i].quantiser);
        }
    }
    return OK;
}
