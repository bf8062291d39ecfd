// Reflection: every name of the interface is found in its file, with the imports; the answer reports an unknown name.
#include "tests/unit/proto/wire/raw_message.h"

#include "generated/grpc/reflection/v1/reflection.pb-c.h"
#include "proto/control/control.h"

typedef Grpc__Reflection__V1__ServerReflectionResponse pb_response;

enum { ASK_HOST = 1, ASK_FILE = 3, ASK_SYMBOL = 4, ASK_EXTENSION = 5, ASK_EXTENSION_NUMBERS = 6, ASK_SERVICES = 7 };

static pb_response *reflect(const struct raw *request) {
    struct proto_bytes bytes;
    uint8_t *exact = raw_exact(request->bytes, request->length);
    assert_ok(proto_reflect(exact, request->length, &bytes));
    free(exact);
    pb_response *response = grpc__reflection__v1__server_reflection_response__unpack(NULL, bytes.length, bytes.data);
    assert_non_null(response);
    free(bytes.data);
    return response;
}

static pb_response *ask(uint64_t what, const char *text) {
    struct raw request = {.length = 0};
    raw_text(&request, what, text);
    return reflect(&request);
}

static void done(pb_response *response) {
    grpc__reflection__v1__server_reflection_response__free_unpacked(response, NULL);
}

// The file's name is the first field of its descriptor.
static void assert_file(const pb_response *response, size_t index, const char *name) {
    assert_int_equal(response->message_response_case,
                     GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE);
    assert_true(index < response->file_descriptor_response->n_file_descriptor_proto);
    const ProtobufCBinaryData *file = &response->file_descriptor_response->file_descriptor_proto[index];
    assert_true(file->len > 2 + strlen(name));
    assert_int_equal(file->data[0], 1 << 3 | RAW_BYTES);
    assert_int_equal(file->data[1], strlen(name));
    assert_memory_equal(file->data + 2, name, strlen(name));
}

static void assert_error(pb_response *response, int code, const char *text) {
    assert_int_equal(response->message_response_case,
                     GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE);
    assert_int_equal(response->error_response->error_code, code);
    assert_non_null(strstr(response->error_response->error_message, text));
    done(response);
}

static void services_are_listed(void **state) {
    (void)state;
    static const char *const SERVICES[] = {"expertd.v1.Experts", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                                           "grpc.reflection.v1alpha.ServerReflection"};
    pb_response *response = ask(ASK_SERVICES, "*");
    assert_int_equal(response->message_response_case,
                     GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE);
    assert_int_equal(response->list_services_response->n_service, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(response->list_services_response->service[i]->name, SERVICES[i]);
    }
    done(response);
}

static void every_kind_of_symbol_is_found(void **state) {
    (void)state;
    static const struct {
        const char *symbol, *file;
    } CASES[] = {
        {"expertd.v1.Experts", "expertd/v1/expertd.proto"},
        {"expertd.v1.Experts.Forward", "expertd/v1/expertd.proto"},
        {"expertd.v1.Experts.Stream", "expertd/v1/expertd.proto"},
        {"expertd.v1.ForwardRequest", "expertd/v1/expertd.proto"},
        {"expertd.v1.ForwardRequest.hidden", "expertd/v1/expertd.proto"},
        {"expertd.v1.ForwardRequest.routing", "expertd/v1/expertd.proto"},
        {"expertd.v1.CloseRegionResponse", "expertd/v1/expertd.proto"},
        {"expertd.v1.DType", "expertd/v1/expertd.proto"},
        {"expertd.v1.BF16", "expertd/v1/expertd.proto"},
        {"google.rpc.Status", "google/rpc/status.proto"},
        {"google.rpc.ErrorInfo", "google/rpc/error_details.proto"},
        {"google.rpc.ErrorInfo.MetadataEntry", "google/rpc/error_details.proto"},
        {"google.rpc.BadRequest.FieldViolation.field", "google/rpc/error_details.proto"},
        {"google.protobuf.Any", "google/protobuf/any.proto"},
        {"google.protobuf.Duration.nanos", "google/protobuf/duration.proto"},
        {"grpc.health.v1.Health.Watch", "grpc/health/v1/health.proto"},
        {"grpc.health.v1.HealthCheckResponse.ServingStatus", "grpc/health/v1/health.proto"},
        {"grpc.health.v1.HealthCheckResponse.SERVING", "grpc/health/v1/health.proto"},
        {"grpc.reflection.v1.ServerReflection", "grpc/reflection/v1/reflection.proto"},
        {"grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo", "grpc/reflection/v1alpha/reflection.proto"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        pb_response *response = ask(ASK_SYMBOL, CASES[i].symbol);
        assert_file(response, 0, CASES[i].file);
        done(response);
    }
}

static void unknown_symbol_is_not_found(void **state) {
    (void)state;
    static const char *const SYMBOLS[] = {"",
                                          ".",
                                          "expertd",
                                          "expertd.v1",
                                          "expertd.v1.",
                                          "expertd.v1.Nothing",
                                          "expertd.v1.Experts.",
                                          "expertd.v1.Experts.Forwar",
                                          "expertd.v1.Experts.Forward.x",
                                          "expertd.v1.Tensor.dtype.x",
                                          "expertd.v1.DType.BF16",
                                          "expertd.v1..Experts",
                                          "google.rpc.Experts",
                                          "expertd.v1.expertd.v1.Experts"};
    for (size_t i = 0; i < sizeof SYMBOLS / sizeof *SYMBOLS; i++) {
        assert_error(ask(ASK_SYMBOL, SYMBOLS[i]), 5, SYMBOLS[i]);
    }
}

static void file_comes_with_its_imports(void **state) {
    (void)state;
    pb_response *response = ask(ASK_FILE, "expertd/v1/expertd.proto");
    assert_int_equal(response->file_descriptor_response->n_file_descriptor_proto, 3);
    assert_file(response, 0, "expertd/v1/expertd.proto");
    assert_file(response, 1, "google/rpc/status.proto");
    assert_file(response, 2, "google/protobuf/any.proto");
    done(response);
}

static void every_file_is_found_by_its_name(void **state) {
    (void)state;
    static const char *const FILES[] = {"google/rpc/status.proto",
                                        "google/rpc/error_details.proto",
                                        "google/protobuf/any.proto",
                                        "google/protobuf/duration.proto",
                                        "grpc/health/v1/health.proto",
                                        "grpc/reflection/v1/reflection.proto",
                                        "grpc/reflection/v1alpha/reflection.proto"};
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        pb_response *response = ask(ASK_FILE, FILES[i]);
        assert_file(response, 0, FILES[i]);
        done(response);
    }
    assert_error(ask(ASK_FILE, "expertd/v2/expertd.proto"), 5, "expertd/v2/expertd.proto");
    assert_error(ask(ASK_FILE, ""), 5, "no file");
}

static void there_are_no_extensions(void **state) {
    (void)state;
    struct raw request = {.length = 0}, extension = {.length = 0};
    raw_text(&extension, 1, "expertd.v1.Tensor");
    raw_number(&extension, 2, 100);
    raw_message(&request, ASK_EXTENSION, &extension);
    assert_error(reflect(&request), 5, "expertd.v1.Tensor");

    pb_response *response = ask(ASK_EXTENSION_NUMBERS, "expertd.v1.Tensor");
    assert_int_equal(response->message_response_case,
                     GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ALL_EXTENSION_NUMBERS_RESPONSE);
    assert_string_equal(response->all_extension_numbers_response->base_type_name, "expertd.v1.Tensor");
    assert_int_equal(response->all_extension_numbers_response->n_extension_number, 0);
    done(response);
    assert_error(ask(ASK_EXTENSION_NUMBERS, "expertd.v1.Experts"), 5, "expertd.v1.Experts"); // no message
    assert_error(ask(ASK_EXTENSION_NUMBERS, "nowhere.Message"), 5, "nowhere.Message");
}

static void request_and_host_are_echoed(void **state) {
    (void)state;
    struct raw request = {.length = 0};
    raw_text(&request, ASK_HOST, "front.example");
    raw_text(&request, ASK_SYMBOL, "no.such.Thing");
    pb_response *response = reflect(&request);
    assert_string_equal(response->valid_host, "front.example");
    assert_string_equal(response->original_request->host, "front.example");
    assert_string_equal(response->original_request->file_containing_symbol, "no.such.Thing");
    assert_error(response, 5, "no.such.Thing");
}

static void empty_request_is_an_invalid_argument(void **state) {
    (void)state;
    struct raw empty = {.length = 0};
    assert_error(reflect(&empty), 3, "no known message_request");
}

static void very_long_symbol_is_truncated_in_the_answer(void **state) {
    (void)state;
    char symbol[2000];
    memset(symbol, 's', sizeof symbol - 1);
    symbol[sizeof symbol - 1] = '\0';
    assert_error(ask(ASK_SYMBOL, symbol), 5, "sssss");
}

static void invalid_bytes_are_refused(void **state) {
    (void)state;
    struct proto_bytes out;
    assert_refused(proto_reflect((const uint8_t *)"\x22\x7f", 2, &out), EXPERTD_ERR_MALFORMED, "", "ServerReflectionRequest");
    assert_null(out.data);
    assert_refused(proto_reflect((const uint8_t *)"\x22\x01\xff", 3, &out), EXPERTD_ERR_MALFORMED, "file_containing_symbol",
                   "UTF-8");
    assert_null(out.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(services_are_listed),
        cmocka_unit_test(every_kind_of_symbol_is_found),
        cmocka_unit_test(unknown_symbol_is_not_found),
        cmocka_unit_test(file_comes_with_its_imports),
        cmocka_unit_test(every_file_is_found_by_its_name),
        cmocka_unit_test(there_are_no_extensions),
        cmocka_unit_test(request_and_host_are_echoed),
        cmocka_unit_test(empty_request_is_an_invalid_argument),
        cmocka_unit_test(very_long_symbol_is_truncated_in_the_answer),
        cmocka_unit_test(invalid_bytes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
