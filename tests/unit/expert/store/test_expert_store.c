// Experts that are loaded one by one have the bytes, digests and ids of a complete load, and nothing else is read.
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

#include "expert/loader/model_load.h"
#include "expert/store/expert_store.h"
#include "expert/store/holdings.h"
#include "tests/tools/checkpoint_writer.h"

static const char *const MODELS[] = {
    GOLDENS "/layers/mixtral", GOLDENS "/layers/qwen2_moe",         GOLDENS "/layers/gpt_oss",    GOLDENS "/layers/deepseek_v3",
    GOLDENS "/layers/llama4",  "synthetic:tiny,layers=2,experts=5", "synthetic:tiny,format=mxfp4"};
enum { MODELS_COUNT = sizeof MODELS / sizeof *MODELS };

static void load(const char *name, struct model *out) {
    const struct model_options options = {.model = name, .ranks = 1};
    if (err_is(model_load(&options, out))) {
        fail_msg("%s: %s", name, expertd_err_message());
    }
}

static struct expert_store *open_store(const char *name, enum model_parts parts, struct model *model) {
    const struct model_options options = {.model = name, .ranks = 1, .parts = parts};
    struct expert_store *store;
    if (err_is(expert_store_open(&options, model, &store))) {
        fail_msg("%s: %s", name, expertd_err_message());
    }
    return store;
}

static struct expert_block *load_one(struct expert_store *store, size_t layer, uint32_t expert, uint64_t *digest) {
    struct expert_block *block;
    if (err_is(expert_store_load(store, layer, expert, 0, NULL, &block, digest))) {
        fail_msg("%s", expertd_err_message());
    }
    return block;
}

static void each_expert_has_the_bytes_of_a_complete_load(void **state) {
    (void)state;
    for (size_t m = 0; m < MODELS_COUNT; m++) {
        struct model complete, single;
        load(MODELS[m], &complete);
        struct expert_store *store = open_store(MODELS[m], MODEL_WITHOUT_EXPERTS, &single);
        assert_int_equal(single.num_layers, complete.num_layers);
        for (size_t i = 0; i < complete.num_layers; i++) {
            const struct shards *shards = complete.layers[i].in_force->shards;
            for (uint32_t e = complete.layers[i].params.num_experts; e-- > 0;) { // another order
                struct expert_block *block = load_one(store, i, e, &single.layers[i].expert_digests[e]);
                const struct expert_block *wanted = shards->blocks[shards->placement->holder_slots[e]];
                assert_int_equal(block->bytes, wanted->bytes);
                assert_memory_equal(block->data, wanted->data, wanted->bytes);
                expert_block_drop(block);
            }
        }
        expert_store_identify(store);
        assert_memory_equal(single.digest, complete.digest, sizeof single.digest);
        for (size_t i = 0; i < complete.num_layers; i++) {
            assert_int_equal(single.layers[i].weights_id, complete.layers[i].weights_id);
            assert_memory_equal(single.layers[i].expert_digests, complete.layers[i].expert_digests,
                                complete.layers[i].params.num_experts * sizeof(uint64_t));
        }
        expert_store_close(store);
        model_deinit(&complete);
    }
}

static void a_front_has_the_router_and_a_shard_has_not(void **state) {
    (void)state;
    struct model complete, front, shard;
    load(MODELS[1], &complete);
    struct expert_store *of_front = open_store(MODELS[1], MODEL_WITHOUT_EXPERTS, &front);
    struct expert_store *of_shard = open_store(MODELS[1], MODEL_EXPERTS_ONLY, &shard);
    const struct model_layer *a = &complete.layers[0], *b = &front.layers[0], *c = &shard.layers[0];
    assert_memory_equal(a->router.data[0], b->router.data[0], a->router.group_bytes);
    assert_memory_equal(a->shared.up.data[0], b->shared.up.data[0], a->shared.up.group_bytes);
    assert_null(c->router.data);
    assert_null(c->shared.up.data);
    assert_null(c->in_force);
    assert_null(shards_take(b->in_force));
    assert_int_equal(model_epoch(&front), 0);
    assert_string_equal(front.numerics_id, complete.numerics_id);
    assert_string_equal(shard.numerics_id, complete.numerics_id);
    uint8_t prints[2][16], other[16];
    expert_store_fingerprint(of_front, prints[0]);
    expert_store_fingerprint(of_shard, prints[1]);
    assert_memory_equal(prints[0], prints[1], sizeof other);
    struct model another;
    struct expert_store *of_another = open_store(MODELS[0], MODEL_EXPERTS_ONLY, &another);
    expert_store_fingerprint(of_another, other);
    assert_memory_not_equal(prints[0], other, sizeof other);
    expert_store_close(of_another);
    assert_int_equal(expert_store_bytes_read(of_shard), 0);
    assert_true(model_weights_bytes(&shard) < model_weights_bytes(&front));
    expert_store_close(of_front);
    expert_store_close(of_shard);
    model_deinit(&complete);
}

static void only_the_expert_is_read(void **state) {
    (void)state;
    struct model model;
    uint64_t digest;
    struct expert_store *store = open_store(MODELS[0], MODEL_EXPERTS_ONLY, &model);
    const struct layer_params *p = &model.layers[0].params;
    const uint64_t stored = 3ull * p->hidden_size * p->intermediate_size * expertd_dtype_size(model.layers[0].weight_dtype);
    for (uint32_t e = 0; e < 2; e++) {
        expert_block_drop(load_one(store, 0, e, &digest));
        assert_int_equal(expert_store_bytes_read(store), (e + 1) * stored);
    }
    expert_store_close(store);
}

static void a_missing_model_is_an_error(void **state) {
    (void)state;
    struct model model;
    struct expert_store *store;
    const struct model_options options = {.model = GOLDENS "/layers/none", .ranks = 1, .parts = MODEL_EXPERTS_ONLY};
    assert_true(err_is(expert_store_open(&options, &model, &store)));
    assert_null(store);
    assert_null(model.layers);
}

// What was loaded before stays sound, and the store can still be closed.
static void a_file_that_shrinks_is_an_error_of_the_expert(void **state) {
    (void)state;
    const struct checkpoint_recipe recipe = checkpoint_recipe_default();
    char folder[] = "/tmp/expertd-test-store-XXXXXX", weights[64], config[64];
    struct model model;
    uint64_t digest, before;
    assert_non_null(mkdtemp(folder));
    snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
    snprintf(config, sizeof config, "%s/config.json", folder);
    assert_false(err_is(checkpoint_write(folder, &recipe)));
    struct expert_store *store = open_store(folder, MODEL_EXPERTS_ONLY, &model);
    struct expert_block *block = load_one(store, 0, 0, &before), *none = block;
    assert_int_equal(truncate(weights, 4096), 0);
    err_t e = expert_store_load(store, 0, 1, 0, NULL, &none, &digest);
    assert_int_equal(e.code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), "expert 1"));
    assert_null(none);
    assert_true(block->bytes > 0 && before != 0);
    expert_block_drop(block);
    expert_store_close(store);
    assert_int_equal(unlink(weights), 0);
    assert_int_equal(unlink(config), 0);
    assert_int_equal(rmdir(folder), 0);
}

static struct expert_block *block_of(size_t bytes) {
    struct expert_block *block;
    assert_false(err_is(expert_block_create(bytes, NULL, &block)));
    return block;
}

static void holdings_count_and_share(void **state) {
    (void)state;
    struct model model;
    struct holdings *holdings;
    uint64_t digest;
    struct expert_store *store = open_store(MODELS[5], MODEL_EXPERTS_ONLY, &model);
    assert_false(err_is(holdings_create(&model, &holdings)));
    assert_null(holdings_take(holdings, 1, 4));
    assert_false(holdings_digest(holdings, 1, 4, &digest));
    holdings_put(holdings, 1, 4, block_of(128), 7);
    holdings_put(holdings, 1, 2, block_of(64), 8);
    assert_true(holdings_digest(holdings, 1, 4, &digest));
    assert_int_equal(digest, 7);
    assert_int_equal(holdings_figures(holdings).experts, 2);
    assert_int_equal(holdings_figures(holdings).bytes, 192);

    struct expert_block *blocks[3];
    uint32_t missing = 99;
    assert_true(holdings_take_all(holdings, 1, (const uint32_t[]){2, 4}, 2, blocks, &missing));
    assert_int_equal(blocks[0]->bytes, 64);
    assert_int_equal(blocks[1]->bytes, 128);
    holdings_remove(holdings, 1, 4);
    memset(blocks[1]->data, 1, 128); // the reference keeps it
    expert_block_drop(blocks[0]);
    expert_block_drop(blocks[1]);
    assert_false(holdings_take_all(holdings, 1, (const uint32_t[]){2, 3, 4}, 3, blocks, &missing));
    assert_int_equal(missing, 3);
    holdings_put(holdings, 1, 2, block_of(256), 9); // replaces
    assert_int_equal(holdings_figures(holdings).experts, 1);
    assert_int_equal(holdings_figures(holdings).bytes, 256);
    holdings_destroy(holdings);
    expert_store_close(store);
}

static void remote_ranks_have_no_blocks(void **state) {
    (void)state;
    struct model model;
    struct placement *placement;
    struct shards *shards;
    uint64_t digest;
    struct expert_store *store = open_store(MODELS[5], MODEL_WITHOUT_EXPERTS, &model);
    const struct model_layer *layer = &model.layers[0];
    assert_false(err_is(placement_contiguous(layer->params.num_experts, 3, 1, &placement)));
    assert_false(err_is(shards_create(placement, &layer->shapes, 1, &shards)));
    for (uint32_t s = 0; s < placement->rank_first[1]; s++) {
        shards->blocks[s] = load_one(store, 0, placement->rank_experts[s], &digest);
    }
    shards_bind(shards);
    assert_int_equal(shards->bytes, placement->rank_first[1] * layer->shapes.all[0].bytes);
    shards_switch(layer->in_force, shards);
    const struct shards *taken = shards_take(layer->in_force);
    assert_ptr_equal(taken, shards);
    assert_int_equal(taken->runs[0].up.groups, placement->rank_first[1]);
    shards_release(layer->in_force, taken);
    assert_int_equal(model_epoch(&model), 1);
    expert_store_close(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_expert_has_the_bytes_of_a_complete_load),
        cmocka_unit_test(a_front_has_the_router_and_a_shard_has_not),
        cmocka_unit_test(only_the_expert_is_read),
        cmocka_unit_test(a_missing_model_is_an_error),
        cmocka_unit_test(a_file_that_shrinks_is_an_error_of_the_expert),
        cmocka_unit_test(holdings_count_and_share),
        cmocka_unit_test(remote_ranks_have_no_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
