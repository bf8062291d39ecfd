// Every decoder of proto/ that reads a peer's bytes. The first byte of an input chooses it; the rest is the message.
// Beside what the sanitizers see: views lie in the message, and a request that is taken reads back from its own encoding.
#include <stdlib.h>
#include <string.h>

#include "proto/client_wire.h"
#include "proto/control.h"
#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_view(const struct wire_tensor *tensor, const uint8_t *bytes, size_t length) {
    const struct tensor_view *view = &tensor->view;
    if (!tensor->present || view->bytes == 0) {
        return;
    }
    const uint8_t *start = view->data;
    uint64_t needed;
    INVARIANT(start >= bytes && view->bytes <= length && start - bytes <= (ptrdiff_t)(length - view->bytes));
    INVARIANT(!err_is(tensor_bytes(view->dtype, view->shape, view->rank, &needed)) && needed == view->bytes);
    INVARIANT(!tensor->has_extent);
}

static void check_same_tensor(const struct wire_tensor *a, const struct wire_tensor *b) {
    INVARIANT(a->present == b->present && a->has_extent == b->has_extent && a->view.dtype == b->view.dtype);
    INVARIANT(memcmp(&a->extent, &b->extent, sizeof a->extent) == 0);
    INVARIANT(a->view.rank == b->view.rank && memcmp(a->view.shape, b->view.shape, sizeof a->view.shape) == 0);
    INVARIANT(a->view.bytes == b->view.bytes && (a->view.bytes == 0 || memcmp(a->view.data, b->view.data, a->view.bytes) == 0));
}

static void check_same_request(const struct wire_request *a, const struct wire_request *b) {
    INVARIANT(a->id == b->id && a->layer == b->layer && a->weights_id == b->weights_id && a->routing == b->routing);
    INVARIANT(strcmp(a->model, b->model) == 0 && strcmp(a->traceparent, b->traceparent) == 0);
    INVARIANT(a->shared == b->shared && a->output_dtype == b->output_dtype && a->has_output == b->has_output);
    INVARIANT(memcmp(&a->output, &b->output, sizeof a->output) == 0);
    INVARIANT(a->timeout_us == b->timeout_us && a->priority == b->priority && a->timings == b->timings);
    check_same_tensor(&a->ids, &b->ids);
    check_same_tensor(&a->weights, &b->weights);
    check_same_tensor(&a->router_logits, &b->router_logits);
    check_same_tensor(&a->hidden_scale, &b->hidden_scale);
    check_same_tensor(&a->token_ids, &b->token_ids);
    check_same_tensor(&a->router_input, &b->router_input);
    check_same_tensor(&a->hidden, &b->hidden);
}

static void fuzz_request(const uint8_t *bytes, size_t length) {
    struct wire_request request, again;
    if (err_is(wire_decode_request(bytes, length, &request))) {
        INVARIANT(*err_message() != '\0');
        return;
    }
    check_view(&request.hidden, bytes, length);
    check_view(&request.ids, bytes, length);
    check_view(&request.weights, bytes, length);
    struct proto_bytes encoded;
    INVARIANT(!err_is(wire_encode_request(&request, &encoded)));
    INVARIANT(!err_is(wire_decode_request(encoded.data, encoded.length, &again)));
    check_same_request(&request, &again);
    free(encoded.data);
}

static void fuzz_reply(const uint8_t *bytes, size_t length) {
    struct wire_reply reply;
    if (!err_is(wire_decode_reply(bytes, length, &reply))) {
        check_view(&reply.output, bytes, length);
    }
}

static void fuzz_describe_response(const uint8_t *bytes, size_t length) {
    struct describe_response response;
    struct describe_reply *owner;
    if (!err_is(proto_decode_describe_response(bytes, length, &response, &owner))) {
        struct proto_bytes encoded;
        INVARIANT(!err_is(proto_encode_describe_response(&response, &encoded)));
        free(encoded.data);
        describe_reply_free(owner);
    }
}

static void fuzz_status(const uint8_t *bytes, size_t length) {
    struct proto_error_text text;
    if (err_is(proto_decode_status(bytes, length, &text))) {
        return;
    }
    struct proto_error error = {text.grpc_code, text.reason, text.field, text.message, text.retry_after_ms};
    struct proto_bytes encoded;
    INVARIANT(!err_is(proto_encode_status(&error, &encoded)));
    free(encoded.data);
}

static void fuzz_text_request(FALLIBLE (*decode)(const uint8_t *bytes, size_t length, char **text), const uint8_t *bytes,
                              size_t length) {
    char *text;
    if (err_is(decode(bytes, length, &text))) {
        INVARIANT(text == NULL);
    }
    free(text);
}

static void fuzz_reflection(const uint8_t *bytes, size_t length) {
    struct proto_bytes answer;
    if (!err_is(proto_reflect(bytes, length, &answer))) {
        free(answer.data);
    }
}

static void fuzz_health_response(const uint8_t *bytes, size_t length) {
    enum proto_serving status;
    if (!err_is(proto_decode_health_response(bytes, length, &status))) {
        INVARIANT(status <= SERVICE_UNKNOWN);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    const uint8_t *bytes = data + 1;
    size_t length = size - 1;
    switch (data[0]) {
    case 'A':
        fuzz_reply(bytes, length);
        break;
    case 'D':
        fuzz_describe_response(bytes, length);
        break;
    case 'd':
        fuzz_text_request(proto_decode_describe_request, bytes, length);
        break;
    case 'H':
        fuzz_health_response(bytes, length);
        break;
    case 'h':
        fuzz_text_request(proto_decode_health_request, bytes, length);
        break;
    case 'E':
        fuzz_status(bytes, length);
        break;
    case 'r':
        fuzz_reflection(bytes, length);
        break;
    default: // most inputs: the one that every caller reaches with the most to read
        fuzz_request(bytes, length);
    }
    return 0;
}
