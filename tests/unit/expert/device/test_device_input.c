// Callers' rows on their way to a device: any dtype, with scales or without, many in one batch, from memory that was lent and from
// memory that was not. The bits are the CPU's.
#include "tests/unit/expert/layer/served_layer.h"

enum { ROWS = 5, SCALE_COLUMNS = 128, FLOATS = 16 * 1024 };

static const char NAME[] = "qwen2_moe";

// ---- a batch of every dtype

struct sent {
    enum expertd_dtype dtype;
    int scale_rank; // 0: no scale
    bool by_rows;   // of rank 2: one for a row, not for a block of columns
    size_t tokens;
};
// Neighbours of one dtype, which leave and are widened together, and none that are.
static const struct sent SENT[] = {
    {EXPERTD_DTYPE_BF16, 0, false, 2},   {EXPERTD_DTYPE_BF16, 0, false, ROWS}, {EXPERTD_DTYPE_F32, 0, false, 1},
    {EXPERTD_DTYPE_F32, 0, false, 3},    {EXPERTD_DTYPE_F8_E4M3, 2, true, 3},  {EXPERTD_DTYPE_F16, 0, false, 1},
    {EXPERTD_DTYPE_BF16, 0, false, 1},   {EXPERTD_DTYPE_F8_E5M2, 1, false, 4}, {EXPERTD_DTYPE_F8_E4M3, 2, false, 3},
    {EXPERTD_DTYPE_F16, 0, false, ROWS}, {EXPERTD_DTYPE_F8_E4M3, 1, false, 1}, {EXPERTD_DTYPE_F32, 0, false, 0},
};
enum { SENT_COUNT = sizeof SENT / sizeof *SENT };

// Any bits that are no NaN and no Inf.
static void fill_rows(enum expertd_dtype dtype, size_t count, char *out) {
    for (size_t i = 0; i < count; i++) {
        float value = (float)((int)(i * 37 % 101) - 50) / 64;
        uint8_t code = (uint8_t)(i * 53 % 0x60);
        if (expertd_dtype_size(dtype) == 1) {
            out[i] = (char)code;
        } else {
            expertd_dtype_narrow(&value, 1, dtype, out + i * expertd_dtype_size(dtype));
        }
    }
}

struct batch_memory {
    char rows[SENT_COUNT][FLOATS];
    float scales[SENT_COUNT][ROWS * 8];
    float out[SENT_COUNT][ROWS * 160];
};

static struct expertd_tensor_view view_of(enum expertd_dtype dtype, const void *data, uint64_t rows, uint64_t columns) {
    return (struct expertd_tensor_view){.dtype = dtype,
                                        .rank = columns ? 2 : 1,
                                        .shape = {rows, columns},
                                        .data = data,
                                        .bytes = rows * (columns ? columns : 1) * expertd_dtype_size(dtype)};
}

static void ask_in_every_dtype(const struct served *s, const struct model_layer *layer, struct batch_memory *memory,
                               struct layer_request requests[SENT_COUNT]) {
    uint32_t width = layer->params.hidden_size, blocks = (width + SCALE_COLUMNS - 1) / SCALE_COLUMNS;
    for (size_t i = 0; i < SENT_COUNT; i++) {
        const struct sent *sent = &SENT[i];
        size_t bytes = sent->tokens * width * sizeof(float);
        assert_true(bytes <= sizeof memory->rows[i]);
        assert_true(bytes <= sizeof memory->out[i]);
        fill_rows(sent->dtype, sent->tokens * width, memory->rows[i]);
        for (size_t k = 0; k < sizeof memory->scales[i] / sizeof(float); k++) {
            memory->scales[i][k] = 0.01f * (float)(k + 1);
        }
        memset(memory->out[i], 0xff, sizeof memory->out[i]);
        requests[i] = (struct layer_request){.tokens = sent->tokens,
                                             .hidden = view_of(sent->dtype, memory->rows[i], sent->tokens, width),
                                             .shared = true,
                                             .output_dtype = EXPERTD_DTYPE_F32,
                                             .output = memory->out[i]};
        if (sent->scale_rank == 1) {
            requests[i].hidden_scale = view_of(EXPERTD_DTYPE_F32, memory->scales[i], 1, 0);
        } else if (sent->scale_rank == 2) {
            requests[i].hidden_scale = view_of(EXPERTD_DTYPE_F32, memory->scales[i], sent->tokens, sent->by_rows ? 1 : blocks);
        }
        must(layer_request_check(&requests[i], layer, &s->limits));
    }
}

static void rows_of_every_dtype_have_the_cpus_bits(void **state) {
    (void)state;
    static struct batch_memory on_device, on_cpu;
    static const enum expertd_dtype COMPUTED_IN[] = {EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F32};
    struct layer_request requests[SENT_COUNT];
    must(expertd_kernel_select("scalar_sm90"));
    for (size_t d = 0; d < 2; d++) {
        struct served device, cpu;
        must(try_to_serve(&device, NAME, COMPUTED_IN[d], 1, "sim"));
        must(try_to_serve(&cpu, NAME, COMPUTED_IN[d], 1, NULL));
        ask_in_every_dtype(&device, &device.model.layers[0], &on_device, requests);
        must(layer_forward(device.engine, &device.model.layers[0], requests, SENT_COUNT, NULL, NULL));
        ask_in_every_dtype(&cpu, &cpu.model.layers[0], &on_cpu, requests);
        must(layer_forward(cpu.engine, &cpu.model.layers[0], requests, SENT_COUNT, NULL, NULL));
        for (size_t i = 0; i < SENT_COUNT; i++) {
            if (memcmp((const char *)on_device.out[i], (const char *)on_cpu.out[i], sizeof on_cpu.out[i]) != 0) {
                fail_msg("computed in %s: request %zu, %zu rows of %s, got other bits than from the CPU",
                         expertd_dtype_name(COMPUTED_IN[d]), i, SENT[i].tokens, expertd_dtype_name(SENT[i].dtype));
            }
        }
        stop(&device);
        stop(&cpu);
    }
}

// ---- lent memory

// So many tokens that their rows are worth a copy of their own; of most no expert sees a row, which would take its time.
enum { MANY = 192, SEEN = MANY - 1, LENT_BYTES = 1 << 18, UNALIGNED = 13 };

struct large {
    char *rows;
    int32_t ids[MANY];
    float weights[MANY];
    float out[MANY * 160];
};

static void ask_for_one_row(const struct served *s, const struct model_layer *layer, enum expertd_dtype dtype, struct large *large,
                            struct layer_request *request) {
    uint32_t width = layer->params.hidden_size;
    fill_rows(dtype, (size_t)MANY * width, large->rows);
    memset(large->ids, 0xff, sizeof large->ids);
    large->ids[SEEN] = 1;
    large->weights[SEEN] = 0.5f;
    memset(large->out, 0xff, sizeof large->out);
    *request = (struct layer_request){.tokens = MANY,
                                      .hidden = view_of(dtype, large->rows, MANY, width),
                                      .source = ROUTING_GIVEN,
                                      .ids = view_of(EXPERTD_DTYPE_I32, large->ids, MANY, 1),
                                      .weights = view_of(EXPERTD_DTYPE_F32, large->weights, MANY, 1),
                                      .output_dtype = EXPERTD_DTYPE_F32,
                                      .output = large->out};
    must(layer_request_check(request, layer, &s->limits));
}

static void answer_of(struct served *s, const struct model_layer *layer, enum expertd_dtype dtype, struct large *large,
                      float *out) {
    struct layer_request request;
    ask_for_one_row(s, layer, dtype, large, &request);
    must(layer_forward(s->engine, layer, &request, 1, NULL, NULL));
    memcpy(out, large->out, sizeof large->out);
}

// A device fetches what lies there as late as it can: what is written after the batch was taken in arrives, unless it was copied.
static void check_where_rows_leave_from(struct served *s, enum expertd_dtype dtype, struct large *large, bool direct) {
    static float whole[MANY * 160];
    const struct model_layer *layer = &s->model.layers[0];
    size_t row_bytes = layer->params.hidden_size * expertd_dtype_size(dtype);
    struct layer_request request;
    struct layer_timings timings;
    answer_of(s, layer, dtype, large, whole);
    ask_for_one_row(s, layer, dtype, large, &request);
    struct layer_pass *pass = layer_pass_input(s->engine, layer, &request, 1);
    memset(large->rows + SEEN * row_bytes, 0, row_bytes);
    layer_pass_compute(pass);
    must(layer_pass_finish(pass, NULL, &timings));
    assert_int_equal(timings.rows_direct, direct ? MANY : 0);
    const float *last = large->out + SEEN * (size_t)layer->params.hidden_size;
    bool all_zero = true;
    for (uint32_t i = 0; i < layer->params.hidden_size; i++) {
        all_zero = all_zero && last[i] == 0.0f;
    }
    assert_int_equal(all_zero, direct); // the network of a row of zeros gives zeros
    assert_true(direct || memcmp((const char *)large->out, (const char *)whole, sizeof whole) == 0);
}

static void rows_in_lent_memory_leave_from_there(void **state) {
    (void)state;
    static struct large large;
    static const enum expertd_dtype DTYPES[] = {
        EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F32}; // what rows are computed in, and what becomes that on the device
    struct served s;
    struct expertd_device_error error;
    char *memory = calloc(1, LENT_BYTES);
    assert_non_null(memory);
    must(expertd_kernel_select("scalar_sm90"));
    lent = (struct engine_lent){memory, LENT_BYTES};
    max_tokens = MANY;
    must(try_to_serve(&s, NAME, EXPERTD_DTYPE_BF16, 1, "sim"));
    assert_int_equal(s.devices->table->pin(s.devices->all[0], memory, LENT_BYTES, &error), EXPERTD_DEVICE_OK);
    for (size_t d = 0; d < 2; d++) {
        size_t bytes = MANY * s.model.layers[0].params.hidden_size * expertd_dtype_size(DTYPES[d]);
        large.rows = memory + UNALIGNED;
        check_where_rows_leave_from(&s, DTYPES[d], &large, true);
        large.rows = memory + LENT_BYTES - bytes; // to its last byte
        check_where_rows_leave_from(&s, DTYPES[d], &large, true);
        large.rows = calloc(1, bytes);
        assert_non_null(large.rows);
        check_where_rows_leave_from(&s, DTYPES[d], &large, false);
        free(large.rows);
    }
    s.devices->table->unpin(s.devices->all[0], memory);
    stop(&s);
    lent = (struct engine_lent){0};
    max_tokens = MAX_TOKENS;
    free(memory);
}

// ---- what a device that stood still has left

enum { FEW = 2 };

static void ask_with(const struct served *s, const struct model_layer *layer, enum expertd_dtype dtype, char *rows, float *out,
                     struct layer_request *request) {
    *request = (struct layer_request){.tokens = FEW,
                                      .hidden = view_of(dtype, rows, FEW, layer->params.hidden_size),
                                      .shared = true,
                                      .output_dtype = EXPERTD_DTYPE_F32,
                                      .output = out};
    must(layer_request_check(request, layer, &s->limits));
}

// The first batch's rows are still to be widened when the device goes on, to where the third one's go, which were there at once.
static void rows_of_a_batch_that_was_given_up_are_nobody_elses(void **state) {
    (void)state;
    static char wide[FEW * 160 * sizeof(float)], narrow[FEW * 160 * sizeof(uint16_t)];
    static float right[FEW * 160], out[FEW * 160];
    struct served s;
    struct layer_request first, later;
    must(expertd_kernel_select("scalar_sm90"));
    must(try_to_serve(&s, NAME, EXPERTD_DTYPE_BF16, 1, "sim"));
    const struct model_layer *layer = &s.model.layers[0];
    fill_rows(EXPERTD_DTYPE_F32, FEW * 160, wide);
    fill_rows(EXPERTD_DTYPE_BF16, FEW * 160, narrow);
    memmove(narrow, narrow + 64, sizeof narrow - 64); // other rows than those
    ask_with(&s, layer, EXPERTD_DTYPE_F32, wide, out, &first);
    ask_with(&s, layer, EXPERTD_DTYPE_BF16, narrow, right, &later);
    must(layer_forward(s.engine, layer, &later, 1, NULL, NULL));
    later.output = out;
    s.devices->table->plant_failure("uploadsAtOnce", 0);
    s.devices->table->plant_failure("hang", 0);
    assert_int_equal(layer_forward(s.engine, layer, &first, 1, NULL, NULL).code, EXPERTD_ERR_SHARD_LOST);
    assert_int_equal(layer_forward(s.engine, layer, &later, 1, NULL, NULL).code, EXPERTD_ERR_SHARD_LOST); // in the other slot
    struct layer_pass *pass = layer_pass_input(s.engine, layer, &later, 1);
    s.devices->table->plant_failure(NULL, 0);
    layer_pass_compute(pass);
    err_t e = layer_pass_finish(pass, NULL, NULL);
    assert_true(err_is(e) ? e.code == EXPERTD_ERR_SHARD_LOST : memcmp((const char *)out, (const char *)right, sizeof right) == 0);
    must(layer_forward(s.engine, layer, &later, 1, NULL, NULL));
    assert_memory_equal(out, right, sizeof right);
    stop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_every_dtype_have_the_cpus_bits),
        cmocka_unit_test(rows_in_lent_memory_leave_from_there),
        cmocka_unit_test(rows_of_a_batch_that_was_given_up_are_nobody_elses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
