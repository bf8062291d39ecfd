// grpc.reflection. The types of v1 also serve v1alpha, which differs only in the package name.
#include "proto/control/control.h"

#include <stdio.h>
#include <string.h>

#include "generated/grpc/reflection/v1/reflection.pb-c.h"
#include "proto/control/control_pack.h"
#include "proto/control/control_text.h"
#include "proto/control/descriptors.h"

typedef Grpc__Reflection__V1__ServerReflectionRequest pb_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse pb_response;

enum { SERVICES_MAX = 16, REFLECT_INVALID_ARGUMENT = 3, REFLECT_NOT_FOUND = 5, NAME_TEXT_MAX = 256 };

// Memory of a response until it is packed. Only one of the members is used at a time.
struct answer {
    Grpc__Reflection__V1__ErrorResponse error;
    char error_message[2 * NAME_TEXT_MAX];

    Grpc__Reflection__V1__FileDescriptorResponse files;
    ProtobufCBinaryData file_bytes[DESCRIPTOR_FILES_MAX];

    Grpc__Reflection__V1__ListServiceResponse list;
    Grpc__Reflection__V1__ServiceResponse services[SERVICES_MAX];
    Grpc__Reflection__V1__ServiceResponse *service_list[SERVICES_MAX];
    char service_names[SERVICES_MAX][DESCRIPTOR_NAME_MAX];

    Grpc__Reflection__V1__ExtensionNumberResponse extensions;
};

static void answer_error(int code, const char *text, const char *name, struct answer *answer, pb_response *response) {
    char clean[NAME_TEXT_MAX];
    grpc__reflection__v1__error_response__init(&answer->error);
    snprintf(answer->error_message, sizeof answer->error_message, "%s%s", text, control_clean_text(name, clean, sizeof clean));
    answer->error.error_code = code;
    answer->error.error_message = answer->error_message;
    response->message_response_case = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    response->error_response = &answer->error;
}

static bool contains(const size_t *indices, size_t count, size_t index) {
    for (size_t i = 0; i < count; i++) {
        if (indices[i] == index) {
            return true;
        }
    }
    return false;
}

// Adds the file and, breadth first, all files that it imports, so that a client need not request each of them.
static void answer_file(size_t index, struct answer *answer, pb_response *response) {
    size_t indices[DESCRIPTOR_FILES_MAX] = {index};
    size_t count = 1;
    for (size_t i = 0; i < count; i++) {
        size_t imported;
        for (size_t nth = 0; descriptors_import(indices[i], nth, &imported); nth++) {
            if (!contains(indices, count, imported)) {
                indices[count++] = imported; // each file once: at most DESCRIPTOR_FILES_MAX
            }
        }
    }
    grpc__reflection__v1__file_descriptor_response__init(&answer->files);
    for (size_t i = 0; i < count; i++) {
        struct wire_span file = descriptors_file(indices[i]);
        answer->file_bytes[i] = (ProtobufCBinaryData){file.length, (uint8_t *)file.bytes};
    }
    answer->files.n_file_descriptor_proto = count;
    answer->files.file_descriptor_proto = answer->file_bytes;
    response->message_response_case = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    response->file_descriptor_response = &answer->files;
}

static void answer_services(struct answer *answer, pb_response *response) {
    size_t count = 0, files = descriptors_count();
    for (size_t file = 0; file < files; file++) {
        for (size_t nth = 0; count < SERVICES_MAX && descriptors_service(file, nth, answer->service_names[count]); nth++) {
            grpc__reflection__v1__service_response__init(&answer->services[count]);
            answer->services[count].name = answer->service_names[count];
            answer->service_list[count] = &answer->services[count];
            count++;
        }
    }
    grpc__reflection__v1__list_service_response__init(&answer->list);
    answer->list.n_service = count;
    answer->list.service = answer->service_list;
    response->message_response_case = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    response->list_services_response = &answer->list;
}

static void answer_symbol(const char *symbol, struct answer *answer, pb_response *response) {
    size_t index;
    bool is_message;
    if (descriptors_find_symbol(symbol, &index, &is_message)) {
        answer_file(index, answer, response);
    } else {
        answer_error(REFLECT_NOT_FOUND, "no symbol ", symbol, answer, response);
    }
}

static void answer_filename(const char *name, struct answer *answer, pb_response *response) {
    size_t index;
    if (descriptors_find_file(name, &index)) {
        answer_file(index, answer, response);
    } else {
        answer_error(REFLECT_NOT_FOUND, "no file ", name, answer, response);
    }
}

// The files declare no extensions, so a known message has an empty list.
static void answer_extensions(const char *type, struct answer *answer, pb_response *response) {
    size_t index;
    bool is_message = false;
    if (!descriptors_find_symbol(type, &index, &is_message) || !is_message) {
        answer_error(REFLECT_NOT_FOUND, "no message ", type, answer, response);
        return;
    }
    grpc__reflection__v1__extension_number_response__init(&answer->extensions);
    answer->extensions.base_type_name = (char *)type;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ALL_EXTENSION_NUMBERS_RESPONSE;
    response->all_extension_numbers_response = &answer->extensions;
}

static void answer_request(const pb_request *request, struct answer *answer, pb_response *response) {
    switch (request->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        answer_filename(request->file_by_filename, answer, response);
        return;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        answer_symbol(request->file_containing_symbol, answer, response);
        return;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
        answer_error(REFLECT_NOT_FOUND, "no extension of ", request->file_containing_extension->containing_type, answer, response);
        return;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        answer_extensions(request->all_extension_numbers_of_type, answer, response);
        return;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        answer_services(answer, response);
        return;
    default:
        answer_error(REFLECT_INVALID_ARGUMENT, "the request contains no known message_request", "", answer, response);
    }
}

// The response contains the request, so its strings must be valid.
static FALLIBLE check_texts(const pb_request *request) {
    TRY(control_check_text("host", request->host));
    switch (request->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        return control_check_text("file_by_filename", request->file_by_filename);
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        return control_check_text("file_containing_symbol", request->file_containing_symbol);
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
        return control_check_text("file_containing_extension.containing_type", request->file_containing_extension->containing_type);
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        return control_check_text("all_extension_numbers_of_type", request->all_extension_numbers_of_type);
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        return control_check_text("list_services", request->list_services);
    default:
        return OK;
    }
}

FALLIBLE proto_reflect(const uint8_t *bytes, size_t length, struct proto_bytes *out) {
    *out = (struct proto_bytes){0};
    TRY(control_check_size("ServerReflectionRequest", length));
    pb_request *request = grpc__reflection__v1__server_reflection_request__unpack(NULL, length, bytes);
    if (!request) {
        FAIL(EXPERTD_ERR_MALFORMED, "the bytes are not a valid ServerReflectionRequest");
    }
    struct answer answer;
    pb_response response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    response.valid_host = request->host;
    response.original_request = request;
    err_t e = check_texts(request);
    if (!err_is(e)) {
        answer_request(request, &answer, &response);
        e = control_pack(&response.base, out);
    }
    grpc__reflection__v1__server_reflection_request__free_unpacked(request, NULL);
    return e;
}
