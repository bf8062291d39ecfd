// The input stage on devices: rows of any dtype, with and without scales, many requests in one batch, from pinned and from other
// memory. The bits equal the CPU's.
#include "tests/unit/expert/layer/served_layer.h"

enum { ROWS = 5, SCALE_COLUMNS = 128, FLOATS = 16 * 1024 };

static const char NAME[] = "qwen2_moe";

// ---- a batch of every dtype

struct sent {
    enum expertd_dtype dtype;
    int scale_rank; // 0: no scale
    bool by_rows;   // rank 2: one scale for each row, instead of one for each block of columns
    size_t tokens;
};
// Some adjacent requests have one dtype, so that they are uploaded and converted together; others have not.
static const struct sent SENT[] = {
    {EXPERTD_DTYPE_BF16, 0, false, 2},   {EXPERTD_DTYPE_BF16, 0, false, ROWS}, {EXPERTD_DTYPE_F32, 0, false, 1},
    {EXPERTD_DTYPE_F32, 0, false, 3},    {EXPERTD_DTYPE_F8_E4M3, 2, true, 3},  {EXPERTD_DTYPE_F16, 0, false, 1},
    {EXPERTD_DTYPE_BF16, 0, false, 1},   {EXPERTD_DTYPE_F8_E5M2, 1, false, 4}, {EXPERTD_DTYPE_F8_E4M3, 2, false, 3},
    {EXPERTD_DTYPE_F16, 0, false, ROWS}, {EXPERTD_DTYPE_F8_E4M3, 1, false, 1}, {EXPERTD_DTYPE_F32, 0, false, 0},
};
enum { SENT_COUNT = sizeof SENT / sizeof *SENT };

// Finite values of the dtype.
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

// ---- pinned memory

// Enough tokens that the rows are read directly. An expert reads one row only (READ_ROW), which keeps the simulation short.
enum { TOKENS = 192, READ_ROW = TOKENS - 1, PINNED_BYTES = 1 << 18, UNALIGNED = 13 };

struct large {
    char *rows;
    int32_t ids[TOKENS];
    float weights[TOKENS];
    float out[TOKENS * 160];
};

static void ask_for_one_row(const struct served *s, const struct model_layer *layer, enum expertd_dtype dtype, struct large *large,
                            struct layer_request *request) {
    uint32_t width = layer->params.hidden_size;
    fill_rows(dtype, (size_t)TOKENS * width, large->rows);
    memset(large->ids, 0xff, sizeof large->ids);
    large->ids[READ_ROW] = 1;
    large->weights[READ_ROW] = 0.5f;
    memset(large->out, 0xff, sizeof large->out);
    *request = (struct layer_request){.tokens = TOKENS,
                                      .hidden = view_of(dtype, large->rows, TOKENS, width),
                                      .source = ROUTING_GIVEN,
                                      .ids = view_of(EXPERTD_DTYPE_I32, large->ids, TOKENS, 1),
                                      .weights = view_of(EXPERTD_DTYPE_F32, large->weights, TOKENS, 1),
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

// The simulated device executes an upload as late as possible: a row that is changed after layer_pass_input arrives changed, unless
// the host has copied it.
static void check_direct(struct served *s, enum expertd_dtype dtype, struct large *large, bool direct) {
    static float whole[TOKENS * 160];
    const struct model_layer *layer = &s->model.layers[0];
    size_t row_bytes = layer->params.hidden_size * expertd_dtype_size(dtype);
    struct layer_request request;
    struct layer_timings timings;
    answer_of(s, layer, dtype, large, whole);
    ask_for_one_row(s, layer, dtype, large, &request);
    struct layer_pass *pass = layer_pass_input(s->engine, layer, &request, 1);
    memset(large->rows + READ_ROW * row_bytes, 0, row_bytes);
    layer_pass_compute(pass);
    must(layer_pass_finish(pass, NULL, &timings));
    assert_int_equal(timings.rows_direct, direct ? TOKENS : 0);
    const float *last = large->out + READ_ROW * (size_t)layer->params.hidden_size;
    bool all_zero = true;
    for (uint32_t i = 0; i < layer->params.hidden_size; i++) {
        all_zero = all_zero && last[i] == 0.0f;
    }
    assert_int_equal(all_zero, direct); // the network of a row of zeros gives zeros
    assert_true(direct || memcmp((const char *)large->out, (const char *)whole, sizeof whole) == 0);
}

static void rows_in_pinned_memory_are_read_directly(void **state) {
    (void)state;
    static struct large large;
    static const enum expertd_dtype DTYPES[] = {EXPERTD_DTYPE_BF16,
                                                EXPERTD_DTYPE_F32}; // the compute dtype, and one that the device converts
    struct served s;
    struct expertd_device_error error;
    char *memory = calloc(1, PINNED_BYTES);
    assert_non_null(memory);
    must(expertd_kernel_select("scalar_sm90"));
    shared_memory = (struct engine_shared_memory){memory, PINNED_BYTES};
    max_tokens = TOKENS;
    must(try_to_serve(&s, NAME, EXPERTD_DTYPE_BF16, 1, "sim"));
    assert_int_equal(s.devices->table->pin(s.devices->all[0], memory, PINNED_BYTES, &error), EXPERTD_DEVICE_OK);
    for (size_t d = 0; d < 2; d++) {
        size_t bytes = TOKENS * s.model.layers[0].params.hidden_size * expertd_dtype_size(DTYPES[d]);
        large.rows = memory + UNALIGNED;
        check_direct(&s, DTYPES[d], &large, true);
        large.rows = memory + PINNED_BYTES - bytes; // up to the last byte of the pinned memory
        check_direct(&s, DTYPES[d], &large, true);
        large.rows = calloc(1, bytes);
        assert_non_null(large.rows);
        check_direct(&s, DTYPES[d], &large, false);
        free(large.rows);
    }
    s.devices->table->unpin(s.devices->all[0], memory);
    stop(&s);
    shared_memory = (struct engine_shared_memory){0};
    max_tokens = MAX_TOKENS;
    free(memory);
}

// ---- after a device has hung

enum { FEW_TOKENS = 2 };

static void request_rows(const struct served *s, const struct model_layer *layer, enum expertd_dtype dtype, char *rows, float *out,
                         struct layer_request *request) {
    *request = (struct layer_request){.tokens = FEW_TOKENS,
                                      .hidden = view_of(dtype, rows, FEW_TOKENS, layer->params.hidden_size),
                                      .shared = true,
                                      .output_dtype = EXPERTD_DTYPE_F32,
                                      .output = out};
    must(layer_request_check(request, layer, &s->limits));
}

// When the device continues, it still converts the rows of the first batch, into the memory that the third batch's rows use. The
// third batch's rows were uploaded at once.
static void rows_of_an_abandoned_batch_do_not_reach_another(void **state) {
    (void)state;
    static char wide[FEW_TOKENS * 160 * sizeof(float)], narrow[FEW_TOKENS * 160 * sizeof(uint16_t)];
    static float right[FEW_TOKENS * 160], out[FEW_TOKENS * 160];
    struct served s;
    struct layer_request first, later;
    must(expertd_kernel_select("scalar_sm90"));
    must(try_to_serve(&s, NAME, EXPERTD_DTYPE_BF16, 1, "sim"));
    const struct model_layer *layer = &s.model.layers[0];
    fill_rows(EXPERTD_DTYPE_F32, FEW_TOKENS * 160, wide);
    fill_rows(EXPERTD_DTYPE_BF16, FEW_TOKENS * 160, narrow);
    memmove(narrow, narrow + 64, sizeof narrow - 64); // rows that differ from those of the first batch
    request_rows(&s, layer, EXPERTD_DTYPE_F32, wide, out, &first);
    request_rows(&s, layer, EXPERTD_DTYPE_BF16, narrow, right, &later);
    must(layer_forward(s.engine, layer, &later, 1, NULL, NULL));
    later.output = out;
    s.devices->table->plant_failure("uploadsAtOnce", 0);
    s.devices->table->plant_failure("hang", 0);
    assert_int_equal(layer_forward(s.engine, layer, &first, 1, NULL, NULL).code, EXPERTD_ERR_SHARD_LOST);
    assert_int_equal(layer_forward(s.engine, layer, &later, 1, NULL, NULL).code,
                     EXPERTD_ERR_SHARD_LOST); // uses the other slot of inputs
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
        cmocka_unit_test(rows_in_pinned_memory_are_read_directly),
        cmocka_unit_test(rows_of_an_abandoned_batch_do_not_reach_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
