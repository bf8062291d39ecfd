// Loading: packed weights and ids do not depend on the stored layout, the ranks or the threads; ids do not depend on the compute
// dtype; damaged and inconsistent checkpoints are refused by name.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/safetensors.h"
#include "expert/loader/model_load.h"
#include "expertd/kernels/kernel_select.h"
#include "tests/tools/checkpoint_writer.h"

static const char *const GOLDEN_CASES[] = {
    "mixtral", "mixtral_one_token", "qwen2_moe", "qwen3_moe_sharded", "qwen3_5_moe", "olmoe", "deepseek_v3", "gpt_oss", "llama4"};
enum { CASES = sizeof GOLDEN_CASES / sizeof *GOLDEN_CASES, PATH_BYTES = 512 };

static void load(const char *model, enum expertd_dtype dtype, uint32_t ranks, struct expertd_team *team, struct model *out) {
    struct model_options options = {.model = model, .compute_dtype = dtype, .ranks = ranks, .team = team};
    err_t e = model_load(&options, out);
    if (err_is(e)) {
        fail_msg("%s: %s", model, expertd_err_message());
    }
}

// The load must fail with that code, and its message contain both texts.
static void refuse(const struct model_options *options, enum expertd_err_code code, const char *text, const char *other) {
    struct model model;
    err_t e = model_load(options, &model);
    if (e.code != code || !strstr(expertd_err_message(), text) || !strstr(expertd_err_message(), other)) {
        fail_msg("expected %s with \"%s\" and \"%s\", got %s: %s", expertd_err_name(code), text, other, expertd_err_name(e.code),
                 err_is(e) ? expertd_err_message() : "-");
    }
    assert_null(model.layers);
    model_deinit(&model); // legal after a failure
}

// Writes a checkpoint to a new folder, whose name goes into `folder`.
static void write_checkpoint(const struct checkpoint_recipe *recipe, char folder[PATH_BYTES]) {
    const char *parent = getenv("TMPDIR");
    snprintf(folder, PATH_BYTES, "%s/expertd-test-XXXXXX", parent ? parent : "/tmp");
    assert_non_null(mkdtemp(folder));
    if (err_is(checkpoint_write(folder, recipe))) {
        fail_msg("%s", expertd_err_message());
    }
}

static void path_in(const char *folder, const char *name, char path[PATH_BYTES]) {
    assert_true(snprintf(path, PATH_BYTES, "%s/%s", folder, name) < PATH_BYTES);
}

static void remove_checkpoint(const char *folder) {
    char path[PATH_BYTES];
    path_in(folder, "config.json", path);
    (void)unlink(path);
    path_in(folder, "model.safetensors", path);
    (void)unlink(path);
    assert_int_equal(rmdir(folder), 0);
}

static void assert_packed_equal(const struct expertd_packed_weights *a, size_t a_group, const struct expertd_packed_weights *b,
                                size_t b_group) {
    assert_int_equal(!a->data, !b->data);
    assert_int_equal(a->group_bytes, b->group_bytes);
    if (a->data && b->data) {
        assert_memory_equal(a->data[a_group], b->data[b_group], a->group_bytes);
    }
}

static void assert_floats_equal(const float *a, const float *b, size_t count) {
    assert_int_equal(!a, !b);
    if (a) {
        assert_memory_equal(a, b, count * sizeof *a);
    }
}

// The weights of the first copy of the expert, and its group there.
static const struct expert_weights *weights_of(const struct model_layer *layer, uint32_t expert, size_t *group) {
    const struct shards *shards = layer->in_force->shards;
    return shards_find(shards, shards->placement->holder_slots[shards->placement->holder_first[expert]], group);
}

static void assert_expert_equal(const struct model_layer *a, const struct model_layer *b, uint32_t expert) {
    size_t ga, gb;
    const struct expert_weights *wa = weights_of(a, expert, &ga), *wb = weights_of(b, expert, &gb);
    size_t width = a->params.intermediate_size, hidden = a->params.hidden_size;
    assert_packed_equal(&wa->gate, ga, &wb->gate, gb);
    assert_packed_equal(&wa->up, ga, &wb->up, gb);
    assert_packed_equal(&wa->down, ga, &wb->down, gb);
    assert_int_equal(!wa->gate_bias, !wb->gate_bias);
    if (wa->gate_bias && wb->gate_bias) {
        assert_floats_equal(wa->gate_bias[ga], wb->gate_bias[gb], width);
        assert_floats_equal(wa->up_bias[ga], wb->up_bias[gb], width);
        assert_floats_equal(wa->down_bias[ga], wb->down_bias[gb], hidden);
    }
}

static void assert_layer_equal(const struct model_layer *a, const struct model_layer *b) {
    assert_int_equal(a->params.layer, b->params.layer);
    assert_int_equal(a->weights_id, b->weights_id);
    assert_string_equal(a->prefix, b->prefix);
    assert_memory_equal(a->expert_digests, b->expert_digests, a->params.num_experts * sizeof *a->expert_digests);
    for (uint32_t e = 0; e < a->params.num_experts; e++) {
        assert_expert_equal(a, b, e);
    }
    assert_packed_equal(&a->router, 0, &b->router, 0);
    assert_packed_equal(&a->shared.gate, 0, &b->shared.gate, 0);
    assert_packed_equal(&a->shared.up, 0, &b->shared.up, 0);
    assert_packed_equal(&a->shared.down, 0, &b->shared.down, 0);
    assert_packed_equal(&a->shared_gate, 0, &b->shared_gate, 0);
    assert_floats_equal(a->router_bias, b->router_bias, a->params.routing.num_experts);
    assert_floats_equal(a->selection_bias, b->selection_bias, a->params.routing.num_experts);
}

static void check_ranks(const struct model *model, uint32_t ranks, enum expertd_dtype dtype) {
    assert_int_equal(model->ranks, ranks);
    assert_int_equal(model->compute_dtype, dtype);
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *l = &model->layers[i];
        size_t groups = 0;
        const struct shards *shards = l->in_force->shards;
        assert_int_equal(shards->placement->ranks, ranks);
        assert_int_not_equal(l->weights_id, 0);
        assert_ptr_equal(l->params.routing.selection_bias, l->selection_bias);
        assert_int_equal(l->params.router_has_selection_bias, l->selection_bias != NULL);
        assert_int_equal(l->router.dtype, EXPERTD_DTYPE_F32);
        for (uint32_t r = 0; r < ranks; r++) {
            const struct expert_weights *run = &shards->runs[shards->rank_runs[r]];
            uint32_t held = shards->placement->rank_first[r + 1] - shards->placement->rank_first[r];
            assert_int_equal(shards->rank_runs[r + 1] - shards->rank_runs[r], held > 0); // all experts have one shape
            if (held > 0) {
                assert_int_equal(run->up.dtype, dtype);
                assert_int_equal((uintptr_t)run->up.data[0] % 64, 0);
                groups += run->up.groups;
            }
        }
        assert_int_equal(groups, l->params.num_experts);
    }
}

static void every_golden_loads_equally_on_any_number_of_ranks(void **state) {
    (void)state;
    for (size_t c = 0; c < CASES; c++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/layers/%s", GOLDENS, GOLDEN_CASES[c]);
        uint8_t digest[16];
        for (int f32 = 0; f32 < 2; f32++) {
            enum expertd_dtype dtype = f32 ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16;
            struct model one;
            load(path, dtype, 1, NULL, &one);
            check_ranks(&one, 1, dtype);
            assert_string_equal(one.name, GOLDEN_CASES[c]);
            char id[64];
            snprintf(id, sizeof id, "1/%s/%s", f32 ? "f32" : "bf16", expertd_kernel_arithmetic_name(dtype));
            assert_string_equal(one.numerics_id, id);
            for (uint32_t ranks = 2; ranks <= 33; ranks += ranks == 2 ? 1 : 30) { // 33: more than there are experts
                struct model more;
                load(path, dtype, ranks, NULL, &more);
                check_ranks(&more, ranks, dtype);
                assert_int_equal(one.num_layers, more.num_layers);
                assert_int_equal(model_weights_bytes(&one), model_weights_bytes(&more));
                for (size_t i = 0; i < one.num_layers; i++) {
                    assert_layer_equal(&one.layers[i], &more.layers[i]);
                }
                assert_memory_equal(one.digest, more.digest, sizeof one.digest);
                model_deinit(&more);
            }
            if (f32) { // ids do not depend on the compute dtype
                assert_memory_equal(digest, one.digest, sizeof digest);
            }
            memcpy(digest, one.digest, sizeof digest);
            model_deinit(&one);
        }
    }
}

static void compute_dtype_is_f32_only_where_every_expert_is(void **state) {
    (void)state;
    struct model model;
    load(GOLDENS "/layers/mixtral_one_token", EXPERTD_DTYPE_NONE, 1, NULL, &model);
    assert_int_equal(model.compute_dtype, EXPERTD_DTYPE_F32);
    model_deinit(&model);
    load(GOLDENS "/layers/mixtral/", EXPERTD_DTYPE_NONE, 1, NULL, &model);
    assert_int_equal(model.compute_dtype, EXPERTD_DTYPE_BF16);
    assert_string_equal(model.name, "mixtral");
    model_deinit(&model);
    refuse(&(struct model_options){.model = GOLDENS "/layers/mixtral", .compute_dtype = EXPERTD_DTYPE_F16, .ranks = 1},
           EXPERTD_ERR_CONFIG, "F16", "bf16 or f32");
}

static void maxima_cover_every_layer(void **state) {
    (void)state;
    struct model model;
    load(GOLDENS "/layers/qwen2_moe", EXPERTD_DTYPE_NONE, 2, NULL, &model);
    assert_int_equal(model.max_hidden_size, 96);
    assert_int_equal(model.max_intermediate_size, 80); // the shared expert's; the routed ones have 40
    assert_int_equal(model.max_experts, 8);
    assert_int_equal(model.max_top_k, 4);
    model_deinit(&model);
}

// gpt-oss has interleaved biases.
static void interleaved_biases_are_separated(void **state) {
    (void)state;
    struct safetensors file;
    struct model model;
    assert_false(err_is(safetensors_open(GOLDENS "/layers/gpt_oss/model.safetensors", &file)));
    load(GOLDENS "/layers/gpt_oss", EXPERTD_DTYPE_BF16, 2, NULL, &model);
    const struct safetensors_entry *stored = safetensors_find(&file, "model.layers.1.mlp.experts.gate_up_proj_bias");
    const struct model_layer *layer = model_find_layer(&model, 1);
    assert_true(stored && layer);
    size_t width = layer->params.intermediate_size;
    for (uint32_t e = 0; e < layer->params.num_experts; e++) {
        size_t group;
        const struct expert_weights *weights = weights_of(layer, e, &group);
        const float *gate_bias = weights->gate_bias[group], *up_bias = weights->up_bias[group];
        for (size_t i = 0; i < width; i++) {
            uint16_t pair[2];
            memcpy(pair, (const char *)stored->view.data + 4 * (e * width + i), sizeof pair);
            assert_true(gate_bias[i] == expertd_f32_from_bf16(pair[0]));
            assert_true(up_bias[i] == expertd_f32_from_bf16(pair[1]));
        }
    }
    model_deinit(&model);
    safetensors_close(&file);
}

static struct checkpoint_recipe small(const char *architecture) {
    return (struct checkpoint_recipe){
        .architecture = architecture, .hidden = 96, .width = 70, .experts = 5, .top_k = 2, .layers = 2, .seed = 7};
}

static void split_fused_and_transposed_files_agree(void **state) {
    (void)state;
    static const char *const others[] = {"mixtral", "olmoe", "qwen2_moe", "qwen3_5_moe", "llama4_text"};
    struct checkpoint_recipe recipe = small("qwen3_moe");
    char folder[PATH_BYTES];
    struct model split, other;
    write_checkpoint(&recipe, folder);
    load(folder, EXPERTD_DTYPE_BF16, 2, NULL, &split);
    remove_checkpoint(folder);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        recipe = small(others[i]);
        write_checkpoint(&recipe, folder);
        load(folder, EXPERTD_DTYPE_BF16, 1, NULL, &other);
        remove_checkpoint(folder);
        assert_int_equal(other.num_layers, split.num_layers);
        for (size_t l = 0; l < split.num_layers; l++) {
            assert_memory_equal(split.layers[l].expert_digests, other.layers[l].expert_digests, 5 * sizeof(uint64_t));
            for (uint32_t e = 0; e < 5; e++) {
                assert_expert_equal(&split.layers[l], &other.layers[l], e);
            }
            assert_packed_equal(&split.layers[l].router, 0, &other.layers[l].router, 0);
            // Mixtral computes the same as Qwen3-MoE; the others compute something else with the same experts.
            assert_int_equal(split.layers[l].weights_id == other.layers[l].weights_id, i == 0);
        }
        model_deinit(&other);
    }
    model_deinit(&split);
}

static void interleaved_columns_are_separated(void **state) {
    (void)state;
    struct checkpoint_recipe recipe = small("qwen3_moe"), biased = small("gpt_oss");
    char folder[PATH_BYTES];
    struct model split, other;
    write_checkpoint(&recipe, folder);
    load(folder, EXPERTD_DTYPE_F32, 1, NULL, &split);
    remove_checkpoint(folder);
    write_checkpoint(&biased, folder);
    load(folder, EXPERTD_DTYPE_F32, 1, NULL, &other);
    remove_checkpoint(folder);
    for (size_t l = 0; l < 2; l++) {
        for (uint32_t e = 0; e < 5; e++) {
            size_t a_group, b_group;
            const struct expert_weights *a = weights_of(&split.layers[l], e, &a_group),
                                        *b = weights_of(&other.layers[l], e, &b_group);
            assert_packed_equal(&a->gate, a_group, &b->gate, b_group);
            assert_packed_equal(&a->up, a_group, &b->up, b_group);
            assert_packed_equal(&a->down, a_group, &b->down, b_group);
            assert_int_not_equal(split.layers[l].expert_digests[e],
                                 other.layers[l].expert_digests[e]); // its biases are part of the digest
        }
    }
    model_deinit(&split);
    model_deinit(&other);
}

static void a_folder_and_its_synthetic_model_have_the_same_weights(void **state) {
    (void)state;
    struct checkpoint_recipe recipe = checkpoint_recipe_default();
    char folder[PATH_BYTES];
    struct model stored, made;
    write_checkpoint(&recipe, folder);
    load(folder, EXPERTD_DTYPE_NONE, 3, NULL, &stored);
    remove_checkpoint(folder);
    load("synthetic:tiny", EXPERTD_DTYPE_NONE, 2, NULL, &made);
    assert_int_equal(stored.num_layers, made.num_layers);
    for (size_t i = 0; i < made.num_layers; i++) {
        assert_layer_equal(&stored.layers[i], &made.layers[i]);
    }
    assert_int_equal(stored.stored_bytes, made.stored_bytes);
    assert_memory_not_equal(stored.digest, made.digest, sizeof made.digest); // their configurations differ
    model_deinit(&stored);
    model_deinit(&made);
}

static void a_team_packs_what_one_thread_packs(void **state) {
    (void)state;
    static const char *const models[] = {GOLDENS "/layers/deepseek_v3", GOLDENS "/layers/gpt_oss", "synthetic:tiny,layers=3"};
    struct expertd_team *team;
    assert_false(err_is(expertd_team_create(&(struct expertd_team_options){.threads = 4, .spin_us = 50}, &team)));
    for (size_t m = 0; m < 3; m++) {
        struct model alone, together;
        load(models[m], EXPERTD_DTYPE_BF16, 2, NULL, &alone);
        load(models[m], EXPERTD_DTYPE_BF16, 2, team, &together);
        assert_int_equal(alone.arena.used, together.arena.used);
        for (size_t i = 0; i < alone.num_layers; i++) {
            assert_layer_equal(&alone.layers[i], &together.layers[i]);
        }
        assert_memory_equal(alone.digest, together.digest, sizeof alone.digest);
        model_deinit(&alone);
        model_deinit(&together);
    }
    expertd_team_destroy(team);
}

static void one_bit_changes_the_ids_of_its_expert_and_layer_only(void **state) {
    (void)state;
    struct checkpoint_recipe recipe = small("llama4_text");
    char folder[PATH_BYTES], path[PATH_BYTES];
    struct model before, after;
    write_checkpoint(&recipe, folder);
    load(folder, EXPERTD_DTYPE_BF16, 1, NULL, &before);
    path_in(folder, "model.safetensors", path);
    struct safetensors file;
    assert_false(err_is(safetensors_open(path, &file)));
    const struct safetensors_entry *down = safetensors_find(&file, "model.layers.1.feed_forward.experts.down_proj");
    assert_non_null(down);
    long at = (long)((const char *)down->view.data - (const char *)file.map) + 3L * 70 * 96 * 2 + 11; // in expert 3
    uint8_t byte = *((const uint8_t *)file.map + at) ^ 1;
    safetensors_close(&file);
    FILE *out = fopen(path, "r+b");
    assert_non_null(out);
    assert_int_equal(fseek(out, at, SEEK_SET), 0);
    assert_int_equal(fputc(byte, out), byte);
    assert_int_equal(fclose(out), 0);
    load(folder, EXPERTD_DTYPE_BF16, 1, NULL, &after);
    remove_checkpoint(folder);
    assert_int_equal(before.layers[0].weights_id, after.layers[0].weights_id);
    assert_int_not_equal(before.layers[1].weights_id, after.layers[1].weights_id);
    assert_memory_not_equal(before.digest, after.digest, sizeof after.digest);
    for (uint32_t e = 0; e < 5; e++) {
        assert_int_equal(before.layers[1].expert_digests[e] == after.layers[1].expert_digests[e], e != 3);
    }
    model_deinit(&before);
    model_deinit(&after);
}

static void layers_outside_the_range_are_not_loaded(void **state) {
    (void)state;
    struct model model;
    struct model_options options = {.model = "synthetic:tiny", .ranks = 1, .have_layers = true, .first_layer = 1, .last_layer = 2};
    assert_false(err_is(model_load(&options, &model)));
    assert_int_equal(model.num_layers, 2);
    assert_null(model_find_layer(&model, 0));
    assert_int_equal(model_find_layer(&model, 1)->params.layer, 1);
    assert_ptr_equal(model_find_layer(&model, 2), &model.layers[1]);
    assert_null(model_find_layer(&model, 3));
    model_deinit(&model);
    options.model = GOLDENS "/layers/mixtral";
    options.last_layer = 1;
    assert_false(err_is(model_load(&options, &model)));
    assert_int_equal(model.num_layers, 1);
    assert_non_null(model_find_layer(&model, 1));
    model_deinit(&model);
}

static void a_range_past_the_models_layers_is_refused(void **state) {
    (void)state;
    struct model_options options = {
        .model = GOLDENS "/layers/mixtral", .ranks = 1, .have_layers = true, .first_layer = 0, .last_layer = 2};
    refuse(&options, EXPERTD_ERR_CONFIG, "0-2", "0-1");
    options.model = "synthetic:tiny";
    options.last_layer = 4;
    refuse(&options, EXPERTD_ERR_CONFIG, "0-4", "0-3");
}

static void a_range_without_experts_names_the_layers_that_hold_them(void **state) {
    (void)state;
    struct model_options options = {
        .model = GOLDENS "/layers/deepseek_v3", .ranks = 1, .have_layers = true, .first_layer = 5, .last_layer = 6};
    refuse(&options, EXPERTD_ERR_CONFIG, "5", "1");
    options.model = "synthetic:deepseek-v3";
    options.first_layer = 0;
    options.last_layer = 2; // its dense layers
    refuse(&options, EXPERTD_ERR_CONFIG, "0-2", "3-60");
}

static void zero_shards_are_refused(void **state) {
    (void)state;
    refuse(&(struct model_options){.model = "synthetic:tiny", .ranks = 0}, EXPERTD_ERR_CONFIG, "0 shards", "layer 0");
}

struct progress {
    uint64_t last, all;
    size_t calls;
    const char *cut; // a file to shorten at the first call
};

static void on_progress(void *context, uint64_t done, uint64_t all) {
    struct progress *p = context;
    assert_true(done >= p->last && done <= all);
    if (p->cut && p->calls == 0) {
        assert_int_equal(truncate(p->cut, 4096), 0);
    }
    p->last = done;
    p->all = all;
    p->calls++;
}

static void progress_ends_at_all_bytes(void **state) {
    (void)state;
    struct progress progress = {0};
    struct model model;
    struct model_options options = {
        .model = GOLDENS "/layers/qwen3_5_moe", .ranks = 1, .progress = on_progress, .progress_context = &progress};
    assert_false(err_is(model_load(&options, &model)));
    assert_true(progress.calls >= 2);
    assert_int_equal(progress.last, progress.all);
    assert_int_equal(progress.all, model.stored_bytes);
    model_deinit(&model);
}

static void a_file_that_shrinks_during_the_load_is_an_error(void **state) {
    (void)state;
    struct checkpoint_recipe recipe = checkpoint_recipe_default();
    char folder[PATH_BYTES], path[PATH_BYTES];
    write_checkpoint(&recipe, folder);
    path_in(folder, "model.safetensors", path);
    struct progress progress = {.cut = path};
    struct model_options options = {.model = folder, .ranks = 1, .progress = on_progress, .progress_context = &progress};
    refuse(&options, EXPERTD_ERR_CHECKPOINT, "layer ", "became shorter");
    remove_checkpoint(folder);
}

static void a_truncated_file_is_an_error(void **state) {
    (void)state;
    struct checkpoint_recipe recipe = small("mixtral");
    char folder[PATH_BYTES], path[PATH_BYTES];
    write_checkpoint(&recipe, folder);
    path_in(folder, "model.safetensors", path);
    assert_int_equal(truncate(path, 5000), 0);
    refuse(&(struct model_options){.model = folder, .ranks = 1}, EXPERTD_ERR_CHECKPOINT, "model.safetensors", "");
    remove_checkpoint(folder);
}

// Rewrites the file with one tensor's name or dtype changed.
static void change_tensor(const char *folder, const char *name, const char *new_name, enum expertd_dtype dtype) {
    char path[PATH_BYTES], other[PATH_BYTES];
    struct safetensors file;
    path_in(folder, "model.safetensors", path);
    path_in(folder, "other.safetensors", other);
    assert_false(err_is(safetensors_open(path, &file)));
    struct safetensors_entry *entries = calloc(file.count, sizeof *entries);
    assert_non_null(entries);
    bool found = false;
    for (size_t i = 0; i < file.count; i++) {
        entries[i] = file.entries[i];
        if (strcmp(entries[i].name, name) == 0) {
            found = true;
            entries[i].name = new_name;
            entries[i].view.dtype = dtype;
        }
    }
    assert_true(found);
    assert_false(err_is(safetensors_write(other, entries, file.count)));
    free(entries);
    safetensors_close(&file);
    assert_int_equal(rename(other, path), 0);
}

static void a_missing_or_quantised_tensor_is_named(void **state) {
    (void)state;
    static const char tensor[] = "model.layers.1.mlp.experts.3.up_proj.weight";
    struct checkpoint_recipe recipe = small("qwen3_moe");
    char folder[PATH_BYTES];
    write_checkpoint(&recipe, folder);
    change_tensor(folder, tensor, "unrelated", EXPERTD_DTYPE_BF16);
    refuse(&(struct model_options){.model = folder, .ranks = 1}, EXPERTD_ERR_CHECKPOINT, "model.layers.1.mlp.experts.3", "up_proj");
    remove_checkpoint(folder);
    write_checkpoint(&recipe, folder);
    change_tensor(folder, tensor, tensor, EXPERTD_DTYPE_I16);
    refuse(&(struct model_options){.model = folder, .ranks = 1}, EXPERTD_ERR_CHECKPOINT, tensor, "I16");
    remove_checkpoint(folder);
}

static void a_config_that_disagrees_with_the_tensors_is_refused(void **state) {
    (void)state;
    struct checkpoint_recipe recipe = small("qwen3_moe"), lie = small("qwen3_moe");
    char folder[PATH_BYTES], liar[PATH_BYTES], from[PATH_BYTES], to[PATH_BYTES];
    lie.experts = 6;
    write_checkpoint(&recipe, folder);
    write_checkpoint(&lie, liar);
    path_in(liar, "config.json", from);
    path_in(folder, "config.json", to);
    assert_int_equal(rename(from, to), 0);
    refuse(&(struct model_options){.model = folder, .ranks = 1}, EXPERTD_ERR_CHECKPOINT, "model.layers.", "6");
    remove_checkpoint(folder);
    remove_checkpoint(liar);
}

static void make_folder(char path[PATH_BYTES], const char *parent, const char *name) {
    path_in(parent, name, path);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void a_model_of_the_hub_cache_keeps_its_name(void **state) {
    (void)state;
    struct checkpoint_recipe recipe = small("olmoe");
    char cache[PATH_BYTES], repository[PATH_BYTES], snapshots[PATH_BYTES], snapshot[PATH_BYTES];
    struct model model;
    snprintf(cache, sizeof cache, "/tmp/expertd-cache-XXXXXX");
    assert_non_null(mkdtemp(cache));
    make_folder(repository, cache, "models--allenai--OLMoE-small");
    make_folder(snapshots, repository, "snapshots");
    path_in(snapshots, "0123abcd", snapshot);
    assert_false(err_is(checkpoint_write(snapshot, &recipe)));
    struct model_options options = {.model = "allenai/OLMoE-small", .hf_cache = cache, .ranks = 1};
    if (err_is(model_load(&options, &model))) {
        fail_msg("%s", expertd_err_message());
    }
    assert_string_equal(model.name, "allenai/OLMoE-small");
    assert_string_equal(model.model_type, "olmoe");
    model_deinit(&model);
    options.hf_cache = NULL;
    assert_true(err_is(model_load(&options, &model)));
    remove_checkpoint(snapshot);
    assert_int_equal(rmdir(snapshots) | rmdir(repository) | rmdir(cache), 0);
}

static void a_missing_folder_is_an_error(void **state) {
    (void)state;
    struct model model;
    err_t e = model_load(&(struct model_options){.model = "/nowhere/at all", .ranks = 1}, &model);
    assert_true(err_is(e));
    assert_non_null(strstr(expertd_err_message(), "/nowhere/at all"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_loads_equally_on_any_number_of_ranks),
        cmocka_unit_test(compute_dtype_is_f32_only_where_every_expert_is),
        cmocka_unit_test(maxima_cover_every_layer),
        cmocka_unit_test(interleaved_biases_are_separated),
        cmocka_unit_test(split_fused_and_transposed_files_agree),
        cmocka_unit_test(interleaved_columns_are_separated),
        cmocka_unit_test(a_folder_and_its_synthetic_model_have_the_same_weights),
        cmocka_unit_test(a_team_packs_what_one_thread_packs),
        cmocka_unit_test(one_bit_changes_the_ids_of_its_expert_and_layer_only),
        cmocka_unit_test(layers_outside_the_range_are_not_loaded),
        cmocka_unit_test(a_range_past_the_models_layers_is_refused),
        cmocka_unit_test(a_range_without_experts_names_the_layers_that_hold_them),
        cmocka_unit_test(zero_shards_are_refused),
        cmocka_unit_test(progress_ends_at_all_bytes),
        cmocka_unit_test(a_file_that_shrinks_during_the_load_is_an_error),
        cmocka_unit_test(a_truncated_file_is_an_error),
        cmocka_unit_test(a_missing_or_quantised_tensor_is_named),
        cmocka_unit_test(a_config_that_disagrees_with_the_tensors_is_refused),
        cmocka_unit_test(a_model_of_the_hub_cache_keeps_its_name),
        cmocka_unit_test(a_missing_folder_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
