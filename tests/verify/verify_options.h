// expertd-verify's command line. Pure.
#ifndef EXPERTD_TESTS_VERIFY_VERIFY_OPTIONS_H
#define EXPERTD_TESTS_VERIFY_VERIFY_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "client/c/tls.h"
#include "expertd/base/dtype.h"

enum { VERIFY_TOKENS_MAX = 8 };

struct verify_options {
    const char *address, *model, *hf_cache;
    struct client_tls tls; // on if anything of it is given
    uint32_t tokens[VERIFY_TOKENS_MAX];
    size_t num_tokens;
    enum expertd_dtype compute_dtype; // the dtype that the daemon must compute in; EXPERTD_DTYPE_NONE: any
    bool have_layers;
    uint32_t first_layer, last_layer;
    unsigned threads; // for loading the model; 0: one per processor
    uint64_t seed;
    int64_t timeout_us; // of each call
    bool shared_memory; // tensors and answers in a region
    bool json, help;
};

// Strings are borrowed from argv. EXPERTD_ERR_USAGE names the argument and the remedy.
FALLIBLE verify_options_parse(int argc, char *const *argv, struct verify_options *out);
void verify_options_help(FILE *out);

#endif
