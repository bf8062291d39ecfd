// A shard's side of a batch: what it computes does not depend on how the rows are cut into pieces, and pieces that no correct front
// sends are refused before a byte of them is used.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expert/host/ffn.h"
#include "expert/loader/model_load.h"
#include "expert/rank/rank_engine.h"
#include "expert/store/expert_store.h"
#include "expert/store/holdings.h"
#include "expertd/base/dtype.h"

enum { TOKENS = 12, ROWS = 20 };

struct shard {
    struct model model;
    struct expertd_team *team;
    struct rank_engine *engine;
    struct rank_batch *batch;
    const struct model_layer *layer;
    size_t row_bytes;
    char *hidden; // [TOKENS] rows of row_bytes
    uint32_t missing;
};

static void must(err_t e) {
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
}

static bool take(void *context, size_t layer, const uint32_t *experts, size_t count, struct expert_block **blocks,
                 uint32_t *missing) {
    struct shard *s = context;
    const struct shards *shards = s->model.layers[layer].in_force->shards; // one rank: slot e
    for (size_t i = 0; i < count; i++) {
        if (experts[i] == s->missing) {
            *missing = experts[i];
            return false;
        }
    }
    for (size_t i = 0; i < count; i++) {
        blocks[i] = expert_block_share(shards->blocks[experts[i]]);
    }
    return true;
}

static void start(struct shard *s, const char *name) {
    char path[512];
    *s = (struct shard){.missing = UINT32_MAX};
    snprintf(path, sizeof path, "%s/layers/%s", GOLDENS, name);
    must(expertd_team_create(&(struct expertd_team_options){.threads = 1}, &s->team));
    struct model_options model = {.model = path, .compute_dtype = EXPERTD_DTYPE_BF16, .ranks = 1, .team = s->team};
    must(model_load(&model, &s->model));
    struct rank_engine_options options = {
        .model = &s->model, .limits = {.max_tokens = TOKENS, .max_choices = ROWS}, .team = s->team, .take = take, .context = s};
    must(rank_engine_create(&options, &s->engine));
    must(rank_engine_create_batch(s->engine, &s->batch));
    s->layer = &s->model.layers[0];
    s->row_bytes = expert_row_size(&s->layer->params) * sizeof(uint16_t);
    s->hidden = malloc(TOKENS * s->row_bytes);
    for (size_t i = 0; i < TOKENS * s->row_bytes / sizeof(uint16_t); i++) {
        ((uint16_t *)(void *)s->hidden)[i] = expertd_bf16_from_f32((float)(i * 37 % 101) / 101 - 0.5f);
    }
}

static void stop(struct shard *s) {
    rank_batch_destroy(s->batch);
    rank_engine_destroy(s->engine);
    model_deinit(&s->model);
    expertd_team_destroy(s->team);
    free(s->hidden);
}

struct reader {
    const char *at, *end;
};

static void copy_bytes(void *context, void *to, size_t bytes) {
    struct reader *reader = context;
    assert_true(bytes <= (size_t)(reader->end - reader->at));
    memcpy(to, reader->at, bytes);
    reader->at += bytes;
}

static const struct remote_group GROUPS[] = {{0, 3}, {2, 7}, {3, 10}};
static const uint32_t HIDDEN_ROWS[ROWS] = {0, 1, 2, 1, 3, 4, 5, 6, 7, 0, 8, 9, 10, 11, 2, 4, 6, 8, 10, 1};

// All rows in one piece.
static struct rank_piece piece_of(const struct shard *s, uint64_t batch, struct reader *reader) {
    *reader = (struct reader){s->hidden, s->hidden + TOKENS * s->row_bytes};
    return (struct rank_piece){.batch = batch,
                               .epoch = 5,
                               .layer = s->layer->params.layer,
                               .row_bytes = s->row_bytes,
                               .groups = GROUPS,
                               .num_groups = 3,
                               .rows = ROWS,
                               .hidden_rows = HIDDEN_ROWS,
                               .num_hidden = TOKENS,
                               .copy = copy_bytes,
                               .context = reader};
}

// The rows as the weights give them, computed directly over the hidden rows, row by row.
static void compute_directly(const struct shard *s, char *results) {
    struct ffn_sizes sizes = {.max_hidden_size = s->model.max_hidden_size,
                              .max_intermediate_size = s->model.max_intermediate_size,
                              .max_experts = s->model.max_experts,
                              .max_rows = 1,
                              .dtype = EXPERTD_DTYPE_BF16,
                              .ordered = true};
    void *memory = aligned_alloc(64, ffn_scratch_bytes(&sizes));
    struct ffn_scratch scratch = {0};
    ffn_scratch_init(&scratch, &sizes, memory);
    size_t row = 0;
    for (size_t g = 0; g < 3; g++) {
        int32_t group_sizes[256] = {0};
        group_sizes[GROUPS[g].expert] = 1;
        for (uint32_t i = 0; i < GROUPS[g].rows; i++, row++) {
            struct ffn_args args = {.runs = s->layer->in_force->shards->runs,
                                    .num_runs = 1,
                                    .activation = &s->layer->params.activation,
                                    .hidden_size = expert_row_size(&s->layer->params),
                                    .intermediate_size = s->layer->params.intermediate_size,
                                    .dtype = EXPERTD_DTYPE_BF16,
                                    .group_sizes = group_sizes,
                                    .rows = 1,
                                    .hidden = s->hidden + HIDDEN_ROWS[row] * s->row_bytes,
                                    .hidden_stride = s->row_bytes,
                                    .results = results + row * s->row_bytes,
                                    .results_stride = s->row_bytes};
            must(ffn_forward(&args, &scratch, NULL));
        }
    }
    free(memory);
}

// Cuts the rows into pieces of up to `limit` rows, across experts, and computes them one by one.
static void compute_in_pieces(struct shard *s, uint64_t batch, size_t limit, char *results) {
    struct reader reader;
    struct rank_piece whole = piece_of(s, batch, &reader);
    size_t group = 0, taken = 0, hidden = 0;
    for (size_t row = 0; row < ROWS;) {
        struct remote_group groups[3];
        struct rank_piece piece = whole;
        piece.groups = groups;
        piece.num_groups = piece.rows = 0;
        while (group < 3 && piece.rows < limit) {
            size_t left = GROUPS[group].rows - taken, take = left < limit - piece.rows ? left : limit - piece.rows;
            groups[piece.num_groups++] = (struct remote_group){GROUPS[group].expert, (uint32_t)take};
            piece.rows += take;
            taken = take < left ? taken + take : 0;
            group += take == left;
        }
        piece.first_row = row;
        piece.first_hidden = hidden;
        piece.hidden_rows = HIDDEN_ROWS + row;
        for (size_t i = 0; i < piece.rows; i++) {
            hidden = HIDDEN_ROWS[row + i] >= hidden ? HIDDEN_ROWS[row + i] + 1 : hidden;
        }
        piece.num_hidden = hidden - piece.first_hidden;
        assert_false(rank_batch_skips(s->batch, batch));
        must(rank_engine_take(s->engine, s->batch, &piece));
        must(rank_engine_compute(s->engine, s->batch, &piece, results + row * s->row_bytes, s->row_bytes));
        row += piece.rows;
    }
}

static void pieces_of_any_size_give_the_bits_of_single_rows(void **state) {
    (void)state;
    static const char *const CASES[] = {"mixtral", "gpt_oss", "qwen2_moe"};
    static const size_t LIMITS[] = {1, 2, 3, 5, 11, ROWS};
    for (size_t c = 0; c < 3; c++) {
        struct shard s;
        start(&s, CASES[c]);
        char *want = malloc(ROWS * s.row_bytes), *got = malloc(ROWS * s.row_bytes);
        compute_directly(&s, want);
        for (size_t l = 0; l < sizeof LIMITS / sizeof *LIMITS; l++) {
            memset(got, 0xff, ROWS * s.row_bytes);
            compute_in_pieces(&s, l + 1, LIMITS[l], got);
            assert_memory_equal(got, want, ROWS * s.row_bytes);
        }
        free(want);
        free(got);
        stop(&s);
    }
}

static bool take_held(void *context, size_t layer, const uint32_t *experts, size_t count, struct expert_block **blocks,
                      uint32_t *missing) {
    return holdings_take_all(context, layer, experts, count, blocks, missing);
}

// A shard that has loaded the three experts, and nothing else of the model, computes the bits of the complete model.
static void single_loaded_experts_give_the_bits_of_the_complete_model(void **state) {
    (void)state;
    static const char *const CASES[] = {"mixtral", "gpt_oss_mxfp4", "kimi_k2_int4"};
    for (size_t c = 0; c < 3; c++) {
        char path[512];
        struct shard whole, some = {0};
        struct expert_store *store;
        struct holdings *holdings;
        start(&whole, CASES[c]);
        snprintf(path, sizeof path, "%s/layers/%s", GOLDENS, CASES[c]);
        struct model_options options = {
            .model = path, .compute_dtype = EXPERTD_DTYPE_BF16, .parts = MODEL_EXPERTS_ONLY, .ranks = 1, .team = whole.team};
        must(expert_store_open(&options, &some.model, &store));
        must(holdings_create(&some.model, &holdings));
        for (size_t g = 0; g < 3; g++) {
            struct expert_block *block;
            uint64_t digest;
            must(expert_store_load(store, 0, GROUPS[g].expert, 0, NULL, &block, &digest));
            holdings_put(holdings, 0, GROUPS[g].expert, block, digest);
        }
        struct rank_engine_options engine = {.model = &some.model,
                                             .limits = {.max_tokens = TOKENS, .max_choices = ROWS},
                                             .team = whole.team,
                                             .take = take_held,
                                             .context = holdings};
        must(rank_engine_create(&engine, &some.engine));
        must(rank_engine_create_batch(some.engine, &some.batch));
        some.layer = &some.model.layers[0];
        some.hidden = whole.hidden;
        some.row_bytes = whole.row_bytes;
        char *want = malloc(ROWS * whole.row_bytes), *got = malloc(ROWS * whole.row_bytes);
        compute_directly(&whole, want);
        compute_in_pieces(&some, 1, 6, got);
        assert_memory_equal(got, want, ROWS * whole.row_bytes);
        rank_batch_destroy(some.batch);
        rank_engine_destroy(some.engine);
        holdings_destroy(holdings);
        expert_store_close(store);
        stop(&whole);
        free(want);
        free(got);
    }
}

static void refused(struct shard *s, const struct rank_piece *piece, enum expertd_err_code code, const char *field) {
    err_t e = rank_engine_take(s->engine, s->batch, piece);
    if (e.code != code || strcmp(expertd_err_field(), field) != 0) {
        fail_msg("expected %s at %s; got %s at %s: %s", expertd_err_name(code), field, expertd_err_name(e.code),
                 expertd_err_field(), expertd_err_message());
    }
    assert_true(rank_batch_skips(s->batch, piece->batch)); // the error is the only answer to this batch
}

static void pieces_that_no_front_sends_are_refused(void **state) {
    (void)state;
    struct shard s;
    struct reader reader;
    uint64_t batch = 1;
    start(&s, "mixtral");
    uint32_t experts = s.layer->params.num_experts;
    struct rank_piece piece = piece_of(&s, batch++, &reader);
    piece.layer = 99;
    refused(&s, &piece, EXPERTD_ERR_LAYER_UNKNOWN, "layer");
    piece = piece_of(&s, batch++, &reader);
    piece.row_bytes -= 2;
    refused(&s, &piece, EXPERTD_ERR_SHAPE_MISMATCH, "row_bytes");

    struct remote_group groups[3];
    memcpy(groups, GROUPS, sizeof groups);
    groups[2].expert = experts;
    piece = piece_of(&s, batch++, &reader);
    piece.groups = groups;
    refused(&s, &piece, EXPERTD_ERR_EXPERT_OUT_OF_RANGE, "experts");
    groups[2] = groups[1]; // the same expert again
    piece = piece_of(&s, batch++, &reader);
    piece.groups = groups;
    refused(&s, &piece, EXPERTD_ERR_INVALID, "experts");
    groups[2] = (struct remote_group){3, 0};
    piece = piece_of(&s, batch++, &reader);
    piece.groups = groups;
    refused(&s, &piece, EXPERTD_ERR_INVALID, "experts");
    groups[2] = (struct remote_group){3, UINT32_MAX};
    piece = piece_of(&s, batch++, &reader);
    piece.groups = groups;
    refused(&s, &piece, EXPERTD_ERR_INVALID, "group_rows");
    piece = piece_of(&s, batch++, &reader);
    piece.num_groups = 0;
    piece.rows = 0;
    refused(&s, &piece, EXPERTD_ERR_INVALID, "group_rows");
    groups[2] = (struct remote_group){3, 11};
    piece = piece_of(&s, batch++, &reader);
    piece.groups = groups;
    piece.rows = ROWS + 1;
    refused(&s, &piece, EXPERTD_ERR_TOO_LARGE, "group_rows");

    piece = piece_of(&s, batch++, &reader);
    piece.first_row = 1;
    refused(&s, &piece, EXPERTD_ERR_INVALID, "first_row");
    piece = piece_of(&s, batch++, &reader);
    piece.first_hidden = 1;
    refused(&s, &piece, EXPERTD_ERR_INVALID, "first_row");
    piece = piece_of(&s, batch++, &reader);
    piece.num_hidden = TOKENS + 1;
    refused(&s, &piece, EXPERTD_ERR_TOO_LARGE, "hidden");
    piece = piece_of(&s, batch++, &reader);
    piece.num_hidden = SIZE_MAX;
    refused(&s, &piece, EXPERTD_ERR_TOO_LARGE, "hidden");
    piece = piece_of(&s, batch++, &reader);
    piece.num_hidden = TOKENS - 1; // row 13 reads the last one
    refused(&s, &piece, EXPERTD_ERR_INVALID, "hidden_rows");

    // A second piece of a batch that began differently, or that repeats the first.
    for (int i = 0; i < 3; i++) {
        piece = piece_of(&s, batch++, &reader);
        must(rank_engine_take(s.engine, s.batch, &piece));
        piece.epoch += i == 0;
        piece.layer += i == 1;
        refused(&s, &piece, EXPERTD_ERR_INVALID, i == 2 ? "first_row" : "batch");
    }
    stop(&s);
}

static void batch_0_is_refused(void **state) {
    (void)state;
    struct shard s;
    struct reader reader;
    start(&s, "mixtral");
    struct rank_piece piece = piece_of(&s, 0, &reader);
    refused(&s, &piece, EXPERTD_ERR_INVALID, "batch");
    stop(&s);
}

// The first piece of a later batch replaces the rows of the one before, and pieces of earlier batches need no answer.
static void a_later_batch_replaces_an_abandoned_one(void **state) {
    (void)state;
    struct shard s;
    struct reader reader;
    start(&s, "mixtral");
    char *want = malloc(ROWS * s.row_bytes), *got = malloc(ROWS * s.row_bytes);
    compute_directly(&s, want);
    for (uint64_t batch = 1; batch < 50; batch++) { // far more rows than the memory of one batch has
        struct rank_piece piece = piece_of(&s, batch, &reader);
        must(rank_engine_take(s.engine, s.batch, &piece));
        assert_true(rank_batch_skips(s.batch, batch - 1));
        assert_false(rank_batch_skips(s.batch, batch));
        assert_false(rank_batch_skips(s.batch, batch + 1));
    }
    compute_in_pieces(&s, 50, 4, got);
    assert_memory_equal(got, want, ROWS * s.row_bytes);
    free(want);
    free(got);
    stop(&s);
}

static void an_expert_that_is_not_held_is_named(void **state) {
    (void)state;
    struct shard s;
    struct reader reader;
    char text[128];
    start(&s, "mixtral");
    char *results = malloc(ROWS * s.row_bytes);
    s.missing = 2;
    unsigned references = atomic_load(&s.layer->in_force->shards->blocks[0]->references);
    struct rank_piece piece = piece_of(&s, 1, &reader);
    must(rank_engine_take(s.engine, s.batch, &piece));
    assert_int_equal(rank_engine_compute(s.engine, s.batch, &piece, results, s.row_bytes).code, EXPERTD_ERR_SHARD_LOST);
    snprintf(text, sizeof text, "expert 2 of layer %u is not on this shard", s.layer->params.layer);
    assert_string_equal(expertd_err_message(), text);
    assert_true(rank_batch_skips(s.batch, 1));
    assert_false(rank_batch_skips(s.batch, 2));
    assert_int_equal(atomic_load(&s.layer->in_force->shards->blocks[0]->references), references);
    free(results);
    stop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_of_any_size_give_the_bits_of_single_rows),
        cmocka_unit_test(single_loaded_experts_give_the_bits_of_the_complete_model),
        cmocka_unit_test(pieces_that_no_front_sends_are_refused),
        cmocka_unit_test(batch_0_is_refused),
        cmocka_unit_test(a_later_batch_replaces_an_abandoned_one),
        cmocka_unit_test(an_expert_that_is_not_held_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
