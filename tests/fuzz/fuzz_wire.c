// Fuzzes every decoder of proto/ that reads a peer's bytes, except proto/admin. The first byte of an input selects the decoder; the
// rest is the message. Checks that views are within the message, that accepted requests survive encoding and decoding, and that
// protobuf-c decodes them to the same values.
#include <stdlib.h>
#include <string.h>

#include "generated/expertd/v1/expertd.pb-c.h"
#include "proto/client/client_wire.h"
#include "proto/control/control.h"
#include "proto/wire/wire.h"
#include "proto/wire/wire_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_view(const struct wire_tensor *tensor, const uint8_t *bytes, size_t length) {
    const struct expertd_tensor_view *view = &tensor->view;
    if (!tensor->present || view->bytes == 0) {
        return;
    }
    const uint8_t *start = view->data;
    uint64_t needed;
    INVARIANT(start >= bytes && view->bytes <= length && start - bytes <= (ptrdiff_t)(length - view->bytes));
    INVARIANT(!err_is(expertd_tensor_bytes(view->dtype, view->shape, view->rank, &needed)) && needed == view->bytes);
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

static void check_same_as_protobuf(const struct wire_tensor *ours, const Expertd__V1__Tensor *theirs) {
    INVARIANT(ours->present == (theirs != NULL));
    if (!theirs) {
        return;
    }
    INVARIANT(theirs->base.n_unknown_fields == 0 && (int)ours->view.dtype == (int)theirs->dtype);
    INVARIANT(ours->view.rank == theirs->n_shape);
    INVARIANT(theirs->n_shape == 0 || memcmp(ours->view.shape, theirs->shape, theirs->n_shape * sizeof *theirs->shape) == 0);
    INVARIANT(ours->has_extent == (theirs->place_case == EXPERTD__V1__TENSOR__PLACE_EXTENT));
    if (ours->has_extent) {
        INVARIANT(ours->extent.region == theirs->extent->region && ours->extent.offset == theirs->extent->offset);
        INVARIANT(ours->extent.length == theirs->extent->length);
    }
    size_t bytes = theirs->place_case == EXPERTD__V1__TENSOR__PLACE_DATA ? theirs->data.len : 0;
    INVARIANT(ours->view.bytes == bytes && (bytes == 0 || memcmp(ours->view.data, theirs->data.data, bytes) == 0));
}

static void check_protobuf_agrees(const struct wire_request *ours, const uint8_t *bytes, size_t length) {
    Expertd__V1__ForwardRequest *theirs = expertd__v1__forward_request__unpack(NULL, length, bytes);
    INVARIANT(theirs && theirs->base.n_unknown_fields == 0);
    INVARIANT(ours->id == theirs->id && ours->layer == theirs->layer && ours->weights_id == theirs->weights_id);
    INVARIANT(strcmp(ours->model, theirs->model) == 0 && strcmp(ours->traceparent, theirs->traceparent) == 0);
    INVARIANT((int)ours->shared == (int)theirs->shared_experts && (int)ours->output_dtype == (int)theirs->output_dtype);
    INVARIANT(ours->timeout_us == theirs->timeout_us && ours->priority == theirs->priority && ours->timings == !!theirs->timings);
    INVARIANT(ours->has_output == (theirs->output != NULL));
    bool routes = theirs->routing_case == EXPERTD__V1__FORWARD_REQUEST__ROUTING_ROUTES;
    bool logits = theirs->routing_case == EXPERTD__V1__FORWARD_REQUEST__ROUTING_ROUTER_LOGITS;
    check_same_as_protobuf(&ours->ids, routes ? theirs->routes->ids : NULL);
    check_same_as_protobuf(&ours->weights, routes ? theirs->routes->weights : NULL);
    check_same_as_protobuf(&ours->router_logits, logits ? theirs->router_logits : NULL);
    check_same_as_protobuf(&ours->hidden_scale, theirs->hidden_scale);
    check_same_as_protobuf(&ours->token_ids, theirs->token_ids);
    check_same_as_protobuf(&ours->router_input, theirs->router_input);
    check_same_as_protobuf(&ours->hidden, theirs->hidden);
    expertd__v1__forward_request__free_unpacked(theirs, NULL);
}

enum { PART_BYTES = 7 };

static struct wire_part part_at(const void *context, size_t index) {
    const struct wire_part *whole = context;
    size_t first = index * PART_BYTES, left = whole->length - first;
    return (struct wire_part){whole->bytes + first, left < PART_BYTES ? left : PART_BYTES};
}

// Split into parts, the message has its hidden states at the same place, and the decoder never reads them.
static void check_parts(const uint8_t *bytes, size_t length, enum expertd_err_code code, const struct wire_request *request) {
    struct wire_part whole = {bytes, length};
    struct wire_parts parts = {.context = &whole, .count = (length + PART_BYTES - 1) / PART_BYTES, .part = part_at};
    struct wire_range range;
    bool found = wire_find_hidden(&parts, &range);
    INVARIANT(found || code != EXPERTD_ERR_OK || request->hidden.view.bytes == 0);
    if (!found) {
        return;
    }
    INVARIANT(range.first <= length && range.length <= length - range.first);
    INVARIANT(code != EXPERTD_ERR_OK || bytes + range.first == request->hidden.view.data);
    uint8_t *other = malloc(length);
    struct wire_request again;
    INVARIANT(other);
    memcpy(other, bytes, length);
    memset(other + range.first, 0xa5, range.length);
    INVARIANT(wire_decode_request(other, length, &again).code == code && again.id == request->id);
    free(other);
}

static void fuzz_request(const uint8_t *bytes, size_t length) {
    struct wire_request request, again;
    err_t e = wire_decode_request(bytes, length, &request);
    check_parts(bytes, length, e.code, &request);
    if (err_is(e)) {
        INVARIANT(*expertd_err_message() != '\0');
        return;
    }
    check_view(&request.hidden, bytes, length);
    check_view(&request.ids, bytes, length);
    check_view(&request.weights, bytes, length);
    struct proto_bytes encoded;
    INVARIANT(!err_is(wire_encode_request(&request, &encoded)));
    INVARIANT(!err_is(wire_decode_request(encoded.data, encoded.length, &again)));
    check_same_request(&request, &again);
    check_protobuf_agrees(&request, bytes, length);
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
    default: // most inputs: the decoder with the most fields
        fuzz_request(bytes, length);
    }
    return 0;
}
