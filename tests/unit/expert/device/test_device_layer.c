// A layer on simulated devices has the bits of the CPU with the same arithmetic, for every golden case, on one device and on
// several. Failures are planted one at a time. The module is loaded as expertd loads it.
#include "tests/unit/expert/layer/served_layer.h"

#include "expert/engine/engine.h"
#include "kernels/device/device_plan.h"

static const char *const CASES[] = {"mixtral",       "mixtral_one_token",
                                    "qwen2_moe",     "qwen3_moe_sharded",
                                    "qwen3_5_moe",   "olmoe",
                                    "deepseek_v3",   "gpt_oss",
                                    "llama4",        "phimoe",
                                    "ernie4_5_moe",  "deepseek_v3_fp8",
                                    "gpt_oss_mxfp4", "kimi_k2_int4",
                                    "mixtral_awq"};
enum { CASE_COUNT = sizeof CASES / sizeof CASES[0] };

static float device_out[CALLERS][FLOATS_MAX], cpu_out[CALLERS][FLOATS_MAX];

static void check_same_bits(const char *name, enum expertd_dtype dtype, uint32_t ranks, const char *device) {
    struct served on_device, on_cpu;
    must(expertd_kernel_select("scalar_sm90"));
    must(try_to_serve(&on_device, name, dtype, ranks, device));
    must(try_to_serve(&on_cpu, name, dtype, 1, NULL));
    assert_string_equal(on_device.model.numerics_id, on_cpu.model.numerics_id);
    for (size_t i = 0; i < on_cpu.model.num_layers; i++) {
        must(forward(&on_device, &on_device.model.layers[i], device_out));
        must(forward(&on_cpu, &on_cpu.model.layers[i], cpu_out));
        for (size_t c = 0; c < CALLERS; c++) {
            if (memcmp((const char *)device_out[c], (const char *)cpu_out[c], sizeof cpu_out[c]) != 0) {
                fail_msg("%s %s, %u ranks on %s: caller %zu of layer %zu got other bits than from the CPU", name,
                         expertd_dtype_name(dtype), ranks, device, c, i);
            }
        }
    }
    stop(&on_device);
    stop(&on_cpu);
}

static void every_golden_layer_has_the_bits_of_its_arithmetic(void **state) {
    (void)state;
    for (size_t c = 0; c < CASE_COUNT; c++) {
        if (takes_case()) {
            check_same_bits(CASES[c], EXPERTD_DTYPE_BF16, 1, "sim");
        }
        if (takes_case()) {
            check_same_bits(CASES[c], EXPERTD_DTYPE_F32, 1, "sim");
        }
    }
}

// The cases have: gated shared experts; biases and the clamped activation; groups of experts; weights on the input.
static void every_forced_variant_has_the_bits_of_its_arithmetic(void **state) {
    (void)state;
    static const char *const MIXED[] = {"qwen2_moe", "gpt_oss", "deepseek_v3", "llama4"};
    for (int v = 0; v < EXPERTD_DEVICE_VARIANTS; v++) {
        char device[64];
        snprintf(device, sizeof device, "sim/%s", device_variant_name((enum expertd_device_variant)v));
        for (size_t c = 0; c < sizeof MIXED / sizeof *MIXED; c++) {
            if (takes_case()) {
                check_same_bits(MIXED[c], v < EXPERTD_DEVICE_MMA_16 ? EXPERTD_DTYPE_F32 : EXPERTD_DTYPE_BF16, 1, device);
            }
        }
    }
}

static void unknown_variants_are_refused(void **state) {
    (void)state;
    static const char *const WRONG[] = {"sim/", "sim/wgmma", "sim:2/mma_128", "cuda/mma_16/", "sim/mma_16 "};
    struct expertd_devices_request request;
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        assert_int_equal(expertd_devices_parse(WRONG[i], &request).code, EXPERTD_ERR_CONFIG);
        assert_non_null(strstr(expertd_err_message(), "wgmma_128"));
    }
    must(expertd_devices_parse("cuda:1/wgmma_8", &request));
    assert_int_equal(request.forced, EXPERTD_DEVICE_WGMMA_8);
    must(expertd_devices_parse("cuda:1", &request));
    assert_int_equal(request.forced, EXPERTD_DEVICE_VARIANTS);
}

static void bits_do_not_depend_on_the_number_of_devices(void **state) {
    (void)state;
    static const char *const MIXED[] = {"qwen2_moe", "llama4", "deepseek_v3"};
    for (size_t c = 0; c < share_of(sizeof MIXED / sizeof *MIXED); c++) {
        check_same_bits(MIXED[c], EXPERTD_DTYPE_BF16, 2, "sim:2");
        check_same_bits(MIXED[c], EXPERTD_DTYPE_BF16, 3, "sim:3");
        check_same_bits(MIXED[c], EXPERTD_DTYPE_BF16, 3, "sim:2"); // two ranks on one of the devices
    }
}

static void unknown_devices_are_refused(void **state) {
    (void)state;
    static const char *const WRONG[] = {"",        "gpu",   "cuda:",  "cuda:x",  "cuda:0,", "cuda:0,0",
                                        "cuda:-1", "sim:0", "sim:17", "sim:1,2", "sims"};
    struct expertd_devices_request request;
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        assert_int_equal(expertd_devices_parse(WRONG[i], &request).code, EXPERTD_ERR_CONFIG);
        assert_non_null(strstr(expertd_err_message(), "sim:N"));
    }
    must(expertd_devices_parse("cuda:2,0", &request));
    assert_int_equal(request.count, 2);
    assert_int_equal(request.numbers[0], 2);
    must(expertd_devices_parse("cuda", &request));
    assert_int_equal(request.count, 0);
    must(expertd_devices_parse("sim:3", &request));
    assert_int_equal(request.count, 3);
    assert_int_equal(request.numbers[2], 2);
    struct expertd_devices *devices;
    must(expertd_devices_parse("sim:16", &request));
    assert_int_equal(expertd_devices_open(&request, &devices).code, EXPERTD_ERR_UNAVAILABLE);
    assert_non_null(strstr(expertd_err_message(), "there are 8"));
}

static void a_gpu_without_kernels_is_refused(void **state) {
    (void)state;
    struct expertd_devices_request request;
    struct expertd_devices *devices;
    must(expertd_devices_parse("sim:2", &request));
    must(expertd_devices_open(&request, &devices));
    const struct expertd_device_table *table = devices->table;
    expertd_devices_close(devices);
    table->plant_failure("cudaFuncGetAttributes", 1);
    assert_int_equal(expertd_devices_open(&request, &devices).code, EXPERTD_ERR_UNAVAILABLE);
    assert_non_null(strstr(expertd_err_message(),
                           "sim device 1: simulated GPU 1 has compute capability 9.0, for which this module contains no kernels"));
    table->plant_failure(NULL, 0);
}

// Each call of CUDA and NCCL at start fails once.
static void a_failed_start_is_reported_and_leaks_nothing(void **state) {
    (void)state;
    static const char *const CALLS[] = {"cudaMalloc",  "cudaHostRegister", "cudaMemcpyAsync",        "cudaStreamCreate",
                                        "ncclLibrary", "ncclGetUniqueId",  "ncclCommInitRankConfig", "ncclGroupEnd",
                                        "ncclJoin"};
    const struct expertd_device_table *table = NULL;
    size_t failures = 0;
    for (size_t c = 0; c < sizeof CALLS / sizeof *CALLS; c++) {
        for (unsigned after = 0;; after++) {
            struct served s;
            if (table) {
                table->plant_failure(CALLS[c], after);
            }
            err_t e = try_to_serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 2, "sim:2");
            table = table ? table : s.devices->table;
            stop(&s);
            table->plant_failure(NULL, 0);
            if (!err_is(e)) {
                if (after > 0 || failures > 0) {
                    break; // after the last of these calls
                }
                after--; // the first start only provided the table
                failures++;
                continue;
            }
            bool memory = strcmp(CALLS[c], "cudaMalloc") == 0, nccl = strncmp(CALLS[c], "nccl", 4) == 0;
            assert_int_equal(e.code, memory ? EXPERTD_ERR_NOMEM : nccl ? EXPERTD_ERR_UNAVAILABLE : EXPERTD_ERR_SHARD_LOST);
            assert_true(!nccl || strstr(expertd_err_message(), "2 devices"));
            failures++;
        }
    }
    assert_true(failures > 20);
}

static uint64_t bytes_taken(const struct served *s) {
    uint64_t most = 0;
    for (uint32_t d = 0; d < s->devices->count; d++) {
        struct expertd_device_error error;
        struct expertd_device_facts facts;
        assert_int_equal(s->devices->table->describe(s->devices->all[d], &facts, &error), EXPERTD_DEVICE_OK);
        uint64_t taken = facts.memory_bytes - facts.memory_available;
        most = taken > most ? taken : most;
    }
    return most;
}

// NCCL allocates memory of its own. A start that succeeds leaves enough for it: all reservations fit, and NCCL's join succeeds.
static void memory_for_nccl_is_left_beside_the_weights(void **state) {
    (void)state;
    enum { NCCL_KIB = 64 << 10, LEFT_KIB = 560 << 10 };
    struct served s;
    must(expertd_kernel_select("scalar_sm90"));
    must(try_to_serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 2, "sim:2"));
    const struct expertd_device_table *table = s.devices->table;
    unsigned fit_kib = (unsigned)(bytes_taken(&s) / 1024) + 1;
    stop(&s);
    table->plant_failure("ncclKiB", NCCL_KIB);
    table->plant_failure("memoryKiB", fit_kib + NCCL_KIB);
    assert_int_equal(try_to_serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 2, "sim:2").code, EXPERTD_ERR_NOMEM);
    assert_non_null(strstr(expertd_err_message(), "NCCL up to 560.0 MiB"));
    stop(&s);
    table->plant_failure("memoryKiB", fit_kib + LEFT_KIB);
    must(try_to_serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 2, "sim:2"));
    s.tokens_max = 1;
    must(forward(&s, &s.model.layers[0], device_out));
    stop(&s);
    table->plant_failure(NULL, 0);
    must(try_to_serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 1, "sim"));
    fit_kib = (unsigned)(bytes_taken(&s) / 1024) + 1;
    stop(&s);
    table->plant_failure("memoryKiB", fit_kib); // with one device NCCL needs no memory
    must(try_to_serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 1, "sim"));
    stop(&s);
    table->plant_failure(NULL, 0);
}

static uint64_t rebuilds_of(const struct served *s) {
    struct engine_exchange exchange;
    engine_exchange_state(s->engine, &exchange);
    return exchange.rebuilds;
}

// Each call of CUDA and NCCL in a batch fails once, and each group of transfers once fails during the transfer and once hangs. The
// batch has an error that names the device, and the next batch is right.
static void a_batch_that_fails_is_an_error_and_no_answer(void **state) {
    (void)state;
    static const char *const CALLS[] = {"cudaMemcpyAsync", "cudaLaunchKernel", "launch",       "ncclSend",
                                        "ncclRecv",        "ncclGroupEnd",     "ncclTransfer", "ncclStuck"};
    struct served s;
    must(expertd_kernel_select("scalar_sm90"));
    must(try_to_serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 2, "sim:2"));
    s.tokens_max = 1; // simulation is slow, especially with sanitizers
    const struct model_layer *layer = &s.model.layers[0];
    must(forward(&s, layer, cpu_out));
    size_t failures = 0;
    for (size_t c = 0; c < sizeof CALLS / sizeof *CALLS; c++) {
        uint64_t rebuilds = rebuilds_of(&s);
        for (unsigned after = 0;; after++, failures++) {
            s.devices->table->plant_failure(CALLS[c], after);
            err_t e = forward(&s, layer, device_out);
            s.devices->table->plant_failure(NULL, 0);
            if (!err_is(e)) {
                break;
            }
            assert_int_equal(e.code, EXPERTD_ERR_SHARD_LOST);
            assert_non_null(strstr(expertd_err_message(), "sim device "));
            for (size_t i = 0; i < sizeof device_out / sizeof(uint32_t); i++) {
                uint32_t bits;
                memcpy(&bits, (const char *)device_out + i * sizeof bits, sizeof bits);
                assert_int_equal(bits, UINT32_MAX); // the outputs were not written
            }
            must(forward(&s, layer, device_out));
            assert_memory_equal(device_out, cpu_out, sizeof cpu_out);
        }
        assert_true(strncmp(CALLS[c], "nccl", 4) != 0 || rebuilds_of(&s) >= rebuilds + 2); // one for dispatch and one for collect
    }
    assert_true(failures > 30);
    stop(&s);
}

// The rows of the next batch are uploaded before the current batch is waited for. Each batch gets its own answer, even if the other
// one fails.
static void the_input_of_a_batch_overlaps_the_compute_of_another(void **state) {
    (void)state;
    static float second_out[CALLERS][FLOATS_MAX];
    struct served s;
    must(expertd_kernel_select("scalar_sm90"));
    must(try_to_serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 2, "sim:2"));
    s.tokens_max = 2;
    const struct model_layer *layer = &s.model.layers[0];
    must(forward(&s, layer, cpu_out));
    assert_true(engine_overlaps(s.engine));
    for (int round = 0; round < 6; round++) {
        struct layer_request first[CALLERS], second[CALLERS];
        ask(&s, layer, device_out, first);
        struct layer_pass *one = layer_pass_input(s.engine, layer, first, CALLERS);
        s.devices->table->plant_failure(round == 1 ? "ncclTransfer" : round == 2 ? "ncclStuck" : NULL, 0);
        layer_pass_compute(one);
        uint64_t copies = s.devices->table->calls("cudaMemcpyAsync");
        if (round == 3) {
            s.devices->table->plant_failure("cudaMemcpyAsync", 0);
        }
        ask(&s, layer, second_out, second);
        struct layer_pass *two = layer_pass_input(s.engine, layer, second, CALLERS);
        assert_int_equal(s.devices->table->calls("cudaMemcpyAsync"), copies + 1);
        bool fails = round == 1 || round == 2;
        assert_int_equal(layer_pass_finish(one, NULL, NULL).code, fails ? EXPERTD_ERR_SHARD_LOST : EXPERTD_ERR_OK);
        layer_pass_compute(two);
        assert_int_equal(layer_pass_finish(two, NULL, NULL).code, round == 3 ? EXPERTD_ERR_SHARD_LOST : EXPERTD_ERR_OK);
        assert_true(fails || memcmp((const char *)device_out, (const char *)cpu_out, sizeof cpu_out) == 0);
        assert_true(round == 3 || memcmp((const char *)second_out, (const char *)cpu_out, sizeof cpu_out) == 0);
    }
    stop(&s);
}

// A device with a permanent error is lost until the process ends; no new communicators are created for it.
static void a_device_lost_for_good_is_reported(void **state) {
    (void)state;
    struct served s;
    struct engine_exchange exchange;
    must(expertd_kernel_select("scalar_sm90"));
    must(try_to_serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 2, "sim:2"));
    s.tokens_max = 1;
    const struct model_layer *layer = &s.model.layers[0];
    s.devices->table->plant_failure("launch", 3);
    assert_int_equal(forward(&s, layer, device_out).code, EXPERTD_ERR_SHARD_LOST);
    engine_exchange_state(s.engine, &exchange);
    assert_true(exchange.lost);
    assert_int_equal(forward(&s, layer, device_out).code, EXPERTD_ERR_SHARD_LOST);
    assert_int_equal(rebuilds_of(&s), 0);
    s.devices->table->plant_failure(NULL, 0);
    stop(&s);
}

// A kernel or copy that does not end cannot be aborted, so the device is reported as lost after its timeout. If it ends later, the
// device serves again.
static void a_hang_loses_the_device_until_it_ends(void **state) {
    (void)state;
    static const char *const DEVICES[] = {"sim", "sim:2"}, *const HANGS[] = {"hang", "hangCopy"};
    for (size_t d = 0; d < sizeof DEVICES / sizeof *DEVICES; d++) {
        for (unsigned round = 0; round < 10; round++) {
            const char *what = HANGS[round / 5];
            unsigned after = round % 5;
            if (!takes_case()) {
                continue;
            }
            struct served s;
            struct engine_exchange exchange;
            must(expertd_kernel_select("scalar_sm90"));
            must(try_to_serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 2, DEVICES[d]));
            s.tokens_max = 1;
            const struct model_layer *layer = &s.model.layers[0];
            must(forward(&s, layer, cpu_out));
            s.devices->table->plant_failure(what, after);
            assert_int_equal(forward(&s, layer, device_out).code, EXPERTD_ERR_SHARD_LOST);
            assert_non_null(strstr(expertd_err_message(), "(exchange_timeout_ms)"));
            engine_exchange_state(s.engine, &exchange);
            assert_true(exchange.lost);
            assert_int_equal(forward(&s, layer, device_out).code, EXPERTD_ERR_SHARD_LOST);
            assert_non_null(strstr(expertd_err_message(), "does not end"));
            s.devices->table->plant_failure(NULL, 0);
            must(forward(&s, layer, device_out));
            assert_memory_equal(device_out, cpu_out, sizeof cpu_out);
            engine_exchange_state(s.engine, &exchange);
            assert_false(exchange.lost);
            stop(&s);
        }
    }
}

static void a_load_that_hangs_is_reported(void **state) {
    (void)state;
    struct served s;
    must(try_to_serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 1, "sim"));
    const struct expertd_device_table *table = s.devices->table;
    stop(&s);
    for (unsigned after = 0; after < 20; after += 5) {
        table->plant_failure("hangCopy", after);
        assert_int_equal(try_to_serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 1, "sim").code, EXPERTD_ERR_SHARD_LOST);
        assert_non_null(strstr(expertd_err_message(), "(exchange_timeout_ms)"));
        table->plant_failure(NULL, 0);
        stop(&s);
    }
}

// The number of copies decides a small batch's time: rows, choices, one message, outputs. Consecutive requests that the device
// routes are routed together, and choices of the host are part of the message.
static void one_copy_sends_the_message_of_a_batch(void **state) {
    (void)state;
    static const struct {
        bool given[CALLERS]; // by the caller, not the device's router
        uint64_t copies;
    } BATCHES[] = {
        {{false, false, false}, 4}, {{true, true, true}, 3},   {{true, false, false}, 5},
        {{false, false, true}, 5},  {{false, true, false}, 7},
    };
    struct served on_device, on_cpu;
    must(expertd_kernel_select("scalar_sm90"));
    must(try_to_serve(&on_device, "qwen2_moe", EXPERTD_DTYPE_BF16, 2, "sim"));
    must(try_to_serve(&on_cpu, "qwen2_moe", EXPERTD_DTYPE_BF16, 1, NULL));
    on_device.tokens_max = on_cpu.tokens_max = 3;
    struct served *both[] = {&on_device, &on_cpu};
    for (size_t i = 0; i < sizeof BATCHES / sizeof *BATCHES; i++) {
        uint64_t before = on_device.devices->table->calls("cudaMemcpyAsync");
        for (size_t s = 0; s < 2; s++) {
            struct layer_request requests[CALLERS];
            ask(both[s], &both[s]->model.layers[0], s == 0 ? device_out : cpu_out, requests);
            for (size_t c = 0; c < CALLERS; c++) {
                struct layer_request *r = &requests[c];
                r->source = BATCHES[i].given[c] ? ROUTING_GIVEN : ROUTING_OWN;
                r->ids = requests[1].ids;
                r->weights = requests[1].weights;
            }
            must(layer_forward(both[s]->engine, &both[s]->model.layers[0], requests, CALLERS, NULL, NULL));
        }
        assert_int_equal(on_device.devices->table->calls("cudaMemcpyAsync") - before, BATCHES[i].copies);
        assert_memory_equal(device_out, cpu_out, sizeof cpu_out);
    }
    stop(&on_device);
    stop(&on_cpu);
}

// A late batch, and many communicators one after another (e2e/answers/test_device_faults.py creates hundreds): the bits are the
// same, and no device memory leaks.
static void communicators_are_replaced_without_leaks(void **state) {
    (void)state;
    const unsigned ROUNDS = (unsigned)share_of(40);
    struct served s;
    must(expertd_kernel_select("scalar_sm90"));
    must(try_to_serve(&s, "qwen2_moe", EXPERTD_DTYPE_BF16, 3, "sim:3"));
    s.tokens_max = 1;
    const struct model_layer *layer = &s.model.layers[0];
    must(forward(&s, layer, cpu_out));
    s.devices->table->plant_failure("ncclLate", 1);
    must(forward(&s, layer, device_out));
    assert_memory_equal(device_out, cpu_out, sizeof cpu_out);
    uint64_t allocated = s.devices->table->calls("cudaMalloc");
    for (unsigned round = 0; round < ROUNDS; round++) {
        s.devices->table->plant_failure("ncclTransfer", round % 4);
        assert_int_equal(forward(&s, layer, device_out).code, EXPERTD_ERR_SHARD_LOST);
        must(forward(&s, layer, device_out));
        assert_memory_equal(device_out, cpu_out, sizeof cpu_out);
    }
    assert_int_equal(rebuilds_of(&s), ROUNDS);
    assert_int_equal(s.devices->table->calls("cudaMalloc"), allocated);
    // If a communicator cannot be created, the next batch tries again.
    s.devices->table->plant_failure("ncclTransfer", 0);
    assert_int_equal(forward(&s, layer, device_out).code, EXPERTD_ERR_SHARD_LOST);
    s.devices->table->plant_failure("ncclJoin", 0);
    assert_int_equal(forward(&s, layer, device_out).code, EXPERTD_ERR_SHARD_LOST);
    assert_non_null(strstr(expertd_err_message(), "a new communicator"));
    must(forward(&s, layer, device_out));
    assert_memory_equal(device_out, cpu_out, sizeof cpu_out);
    stop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_layer_has_the_bits_of_its_arithmetic),
        cmocka_unit_test(every_forced_variant_has_the_bits_of_its_arithmetic),
        cmocka_unit_test(unknown_variants_are_refused),
        cmocka_unit_test(bits_do_not_depend_on_the_number_of_devices),
        cmocka_unit_test(unknown_devices_are_refused),
        cmocka_unit_test(a_gpu_without_kernels_is_refused),
        cmocka_unit_test(a_failed_start_is_reported_and_leaks_nothing),
        cmocka_unit_test(memory_for_nccl_is_left_beside_the_weights),
        cmocka_unit_test(a_batch_that_fails_is_an_error_and_no_answer),
        cmocka_unit_test(the_input_of_a_batch_overlaps_the_compute_of_another),
        cmocka_unit_test(one_copy_sends_the_message_of_a_batch),
        cmocka_unit_test(a_device_lost_for_good_is_reported),
        cmocka_unit_test(a_hang_loses_the_device_until_it_ends),
        cmocka_unit_test(a_load_that_hangs_is_reported),
        cmocka_unit_test(communicators_are_replaced_without_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
