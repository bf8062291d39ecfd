#include <string.h>

#include "expert/quantised/quantised_take.h"
#include "expert/quantised/quantised_tensors.h"

#define OTHER_CODES "take the model's BF16 checkpoint, or one in FP8, INT8, INT4, MXFP8, MXFP4 or NVFP4"

// Sources: the quantisers' own code. Suffixes are in the spelling of quantised_names.h.
static const struct foreign_tensor {
    const char *suffix, *meaning, *mend;
} TENSORS[] = {
    {".weight.absmax", "is part of a bitsandbytes quantisation (4 bits)", OTHER_CODES},
    {".weight.quant_map", "is part of a bitsandbytes quantisation (4 bits)", OTHER_CODES},
    {".absmax", "is part of a bitsandbytes quantisation (4 bits)", OTHER_CODES}, // of stacked experts
    {".quant_map", "is part of a bitsandbytes quantisation (4 bits)", OTHER_CODES},
    {".SCB", "is part of a bitsandbytes quantisation (LLM.int8)", OTHER_CODES},
    {".codebooks", "is part of an AQLM quantisation", OTHER_CODES},
    {".W_q", "is part of an HQQ quantisation", OTHER_CODES},
    {".weight_scales", "is part of an EETQ quantisation", OTHER_CODES},
    {".Qidxs", "is part of a QuIP# quantisation", OTHER_CODES},
    {".centroids", "is part of a VPTQ quantisation", OTHER_CODES},
    {".q_weight", "is part of an EXL2 quantisation", OTHER_CODES},
    {".trellis", "is part of an EXL3 quantisation", OTHER_CODES},
    {".tables2", "is part of a HIGGS quantisation", OTHER_CODES},
    {".lookup_table", "is part of a SqueezeLLM quantisation", OTHER_CODES},
    {".weight._data", "is part of an optimum-quanto quantisation", OTHER_CODES},
    {"._weight_qdata", "is part of a torchao quantisation", OTHER_CODES},
    {".B", "is a weight repacked for the Marlin kernels", "take the checkpoint that it was repacked from"},
    {".scale_packed", "is part of marlin-24, a 2:4 sparse layout", OTHER_CODES},
    {".bitmask", "is part of compressed-tensors' sparse layout", OTHER_CODES},
    {".pre_quant_scale", "is a factor of the matrix's input (AWQ of ModelOpt)", "take a checkpoint without it"},
    {".smooth_scale", "is a factor of the matrix's input (SmoothQuant)", "take a checkpoint without it"},
    {".had_K", "rotates the matrix's input (SpinQuant, QuaRot)", "take a checkpoint without online rotations"},
    {".had_scale", "rotates the matrix's input (SpinQuant, QuaRot)", "take a checkpoint without online rotations"},
    {".hadamard_matrix", "rotates the matrix's input", "take a checkpoint without online rotations"},
    {".forward_hadamard_matrix", "rotates the matrix's input (FP-Quant)", "take a checkpoint without rotations"},
};

static err_t refuse(const struct checkpoint *checkpoint, const struct safetensors_entry *entry, const struct foreign_tensor *row) {
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: tensor %s %s, which is not supported: %s",
                      checkpoint_file_of(checkpoint, entry), entry->name, row->meaning, row->mend);
}

FALLIBLE quantised_refuse_foreign(const struct checkpoint *checkpoint, const char *below) {
    size_t count = checkpoint_count(checkpoint);
    for (size_t i = checkpoint_lower_bound(checkpoint, below); i < count; i++) {
        const struct safetensors_entry *entry = checkpoint_at(checkpoint, i);
        size_t length = strlen(entry->name);
        if (strncmp(entry->name, below, strlen(below)) != 0) {
            break;
        }
        for (size_t row = 0; row < sizeof TENSORS / sizeof *TENSORS; row++) {
            size_t suffix = strlen(TENSORS[row].suffix);
            if (length > suffix && strcmp(entry->name + length - suffix, TENSORS[row].suffix) == 0) {
                return refuse(checkpoint, entry, &TENSORS[row]);
            }
        }
    }
    return OK;
}

FALLIBLE quantised_check_foreign(const struct tensor_finder *finder, const struct quantised_names *names) {
    for (size_t i = 0; i < sizeof TENSORS / sizeof *TENSORS; i++) {
        const struct safetensors_entry *entry = quantised_named(names, TENSORS[i].suffix);
        if (entry) {
            return refuse(finder->checkpoint, entry, &TENSORS[i]);
        }
    }
    return OK;
}

FALLIBLE quantised_check_method(const struct tensor_finder *finder, const struct quantisation *config,
                                const struct safetensors_entry *codes, const char *format) {
    if (config->foreign) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: tensor %s looks like %s, but %s.quant_method is \"%s\", and the codes of %s have another meaning: " OTHER_CODES,
             checkpoint_file_of(finder->checkpoint, codes), codes->name, format, config->section, config->method, config->foreign);
    }
    return OK;
}
