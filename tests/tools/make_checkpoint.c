// make-checkpoint DIR [options]: writes a small checkpoint folder; see checkpoint_writer.h.
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tools/checkpoint_writer.h"

static void usage(FILE *to) {
    struct checkpoint_recipe r = checkpoint_recipe_default();
    fprintf(to,
            "usage: make-checkpoint DIR [--architecture NAME] [--hidden H] [--width I] [--experts E] [--top-k K] [--layers N] "
            "[--seed S] [--format F]\n"
            "Writes DIR/config.json and DIR/model.safetensors with the vendor's tensor names and seeded weights.\n"
            "Without options: %s, H %u, I %u, E %u, K %u, %u layers, seed 0. Architectures:",
            r.architecture, r.hidden, r.width, r.experts, r.top_k, r.layers);
    for (size_t i = 0; checkpoint_architecture(i); i++) {
        fprintf(to, " %s", checkpoint_architecture(i));
    }
    fprintf(to, "\nFormats, for architectures with one tensor per matrix:");
    for (size_t i = 0; checkpoint_format(i); i++) {
        fprintf(to, " %s", checkpoint_format(i));
    }
    fprintf(to, "\n");
}

static bool parse_number(const char *text, uint64_t max, uint64_t *out) {
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && *out <= max;
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"architecture", required_argument, NULL, 'a'},
        {"hidden", required_argument, NULL, 'h'},
        {"width", required_argument, NULL, 'w'},
        {"experts", required_argument, NULL, 'e'},
        {"top-k", required_argument, NULL, 'k'},
        {"layers", required_argument, NULL, 'l'},
        {"seed", required_argument, NULL, 's'},
        {"format", required_argument, NULL, 'f'},
        {"help", no_argument, NULL, 'H'},
        {NULL, 0, NULL, 0},
    };
    struct checkpoint_recipe recipe = checkpoint_recipe_default();
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        uint32_t *size = option == 'h'   ? &recipe.hidden
                         : option == 'w' ? &recipe.width
                         : option == 'e' ? &recipe.experts
                         : option == 'k' ? &recipe.top_k
                         : option == 'l' ? &recipe.layers
                                         : NULL;
        uint64_t value = 0, max = size ? UINT32_MAX : UINT64_MAX;
        if ((size || option == 's') && !parse_number(optarg, max, &value)) {
            fprintf(stderr, "make-checkpoint: \"%s\" is not a number up to %llu\n", optarg, (unsigned long long)max);
            return err_exit_code(EXPERTD_ERR_USAGE);
        }
        if (size) {
            *size = (uint32_t)value;
        } else if (option == 'a') {
            recipe.architecture = optarg;
        } else if (option == 's') {
            recipe.seed = value;
        } else if (option == 'f') {
            recipe.format = optarg;
        } else {
            usage(option == 'H' ? stdout : stderr);
            return option == 'H' ? 0 : err_exit_code(EXPERTD_ERR_USAGE);
        }
    }
    if (optind != argc - 1) {
        usage(stderr);
        return err_exit_code(EXPERTD_ERR_USAGE);
    }
    err_t e = checkpoint_write(argv[optind], &recipe);
    if (err_is(e)) {
        fprintf(stderr, "make-checkpoint: %s\n", expertd_err_message());
        return err_exit_code(e.code);
    }
    printf("%s: %s, H %u, I %u, E %u, K %u, %u layers\n", argv[optind], recipe.architecture, recipe.hidden, recipe.width,
           recipe.experts, recipe.top_k, recipe.layers);
    return 0;
}
