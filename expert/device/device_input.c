// Uploads the callers' rows in as few copies as possible. The device reads large requests in pinned memory
// (engine_options.shared_memory) directly; all other rows are first copied into the staging buffer.
#include "expert/device/device_input.h"

#include <string.h>

#include "expert/device/device_state.h"

// DIRECT_MIN: smaller requests are copied on the host, which takes no longer than a copy command for the GPU, and then share one
// upload.
enum { DIRECT_MIN = 32 << 10, RAW_ALIGN = 16, CHUNK = 256 << 10 };

static size_t aligned(size_t bytes) {
    return (bytes + RAW_ALIGN - 1) / RAW_ALIGN * RAW_ALIGN;
}

// The unconverted rows and scales of one request. The offsets are those in the device's `raw` and in the host's `staging`.
struct raw_rows {
    const struct layer_request *request;
    size_t token; // index of its first token in the batch
    size_t rows_at, rows_bytes, scales_at, scales_bytes;
    bool in_d; // the rows have the dtype and stride of `hidden` and are copied there instead
};

// Visits the requests of a batch in order.
struct raw_rows_iterator {
    const struct batch *b;
    size_t next, token, used; // the next request, its first token, and the next free offset
};

static bool next_request(struct raw_rows_iterator *in, struct raw_rows *out) {
    const struct batch *b = in->b;
    if (in->next == b->count) {
        return false;
    }
    const struct layer_request *request = &b->requests[in->next++];
    size_t row = b->layer->params.hidden_size * expertd_dtype_size(request->hidden.dtype);
    *out = (struct raw_rows){
        .request = request,
        .token = in->token,
        .rows_at = in->used,
        .rows_bytes = request->tokens * row,
        .scales_at = in->used + aligned(request->tokens * row),
        .in_d = request->hidden.dtype == b->engine->model->compute_dtype && row == b->in->hidden_stride,
    };
    if (request->hidden_scale.dtype != EXPERTD_DTYPE_NONE && request->tokens > 0) {
        out->scales_bytes = (size_t)request->hidden_scale.bytes;
    }
    in->token += request->tokens;
    in->used = out->scales_at + aligned(out->scales_bytes);
    return true;
}

// ---- copies to the device

// A copy to the device. Adjacent copies are joined.
struct upload {
    char *to;
    const char *from;
    size_t bytes;
};

static FALLIBLE send(const struct batch *b, const struct upload *u) {
    if (u->bytes > 0) {
        EXPERTD_DEVICES_CALL(b->engine->devices, 0, upload_async, u->to, u->from, u->bytes);
    }
    return OK;
}

// Joins `more` to the pending copy, or sends the pending copy first.
static FALLIBLE append(const struct batch *b, struct upload *pending, const struct upload *more) {
    bool contiguous = more->to == pending->to + pending->bytes && more->from == pending->from + pending->bytes;
    if (more->bytes == 0 || (pending->bytes > 0 && contiguous)) {
        pending->bytes += more->bytes;
        return OK;
    }
    TRY(send(b, pending));
    *pending = *more;
    return OK;
}

static void copy_chunk(void *context, size_t chunk, unsigned thread) {
    (void)thread;
    const struct upload *u = context;
    size_t first = chunk * CHUNK, left = u->bytes - first;
    memcpy(u->to + first, u->from + first, left < CHUNK ? left : CHUNK);
}

// Copies into the staging buffer, with the team if the copy is large.
static void stage(const struct batch *b, size_t at, const void *from, size_t bytes) {
    struct upload copy = {b->in->staging + at, from, bytes};
    size_t chunks = (bytes + CHUNK - 1) / CHUNK;
    expertd_team_run(chunks > 1 ? b->engine->team : NULL, chunks, copy_chunk, &copy);
}

static bool is_pinned(const struct engine_shared_memory *pinned, const void *data, size_t bytes) {
    uintptr_t first = (uintptr_t)pinned->memory, at = (uintptr_t)data;
    return at >= first && at - first < pinned->bytes && bytes <= pinned->bytes - (at - first);
}

// exchange_alive is checked first: a kernel of an abandoned batch may still be in the device's stream and would overwrite the rows.
err_t device_input(struct batch *b, uint64_t *rows_direct) {
    TRY(exchange_alive(b->engine->exchange));
    const struct device_scratch *s = &b->engine->device->scratch[0];
    struct upload pending = {0};
    struct raw_rows raw;
    for (struct raw_rows_iterator in = {.b = b}; next_request(&in, &raw);) {
        const char *rows = raw.request->hidden.data;
        if (raw.rows_bytes >= DIRECT_MIN && is_pinned(&b->engine->shared_memory, rows, raw.rows_bytes)) {
            *rows_direct += raw.request->tokens;
        } else {
            stage(b, raw.rows_at, rows, raw.rows_bytes);
            rows = b->in->staging + raw.rows_at;
        }
        char *to = raw.in_d ? s->hidden[b->slot] + raw.token * b->in->hidden_stride : s->raw[b->slot] + raw.rows_at;
        bool staged = rows == b->in->staging + raw.rows_at; // the padding is copied too, so that the next copy can join
        TRY(append(b, &pending, &(struct upload){to, rows, staged && !raw.in_d ? aligned(raw.rows_bytes) : raw.rows_bytes}));
        if (raw.scales_bytes > 0) {
            stage(b, raw.scales_at, raw.request->hidden_scale.data, raw.scales_bytes);
            struct upload scales = {s->raw[b->slot] + raw.scales_at, b->in->staging + raw.scales_at, raw.scales_bytes};
            TRY(append(b, &pending, &scales));
        }
    }
    return send(b, &pending);
}

// ---- conversion on the device

static struct expertd_device_convert_input conversion_of(const struct batch *b, const struct raw_rows *raw) {
    const struct device_scratch *s = &b->engine->device->scratch[0];
    const struct expertd_tensor_view *scale = &raw->request->hidden_scale;
    return (struct expertd_device_convert_input){
        .from = raw->request->hidden.dtype,
        .to = b->engine->model->compute_dtype,
        .rows = (uint32_t)raw->request->tokens,
        .width = b->layer->params.hidden_size,
        .data = s->raw[b->slot] + raw->rows_at,
        .scales = raw->scales_bytes > 0 ? (const float *)(const void *)(s->raw[b->slot] + raw->scales_at) : NULL,
        .scale_columns = raw->scales_bytes > 0 && scale->rank == 2 ? (uint32_t)scale->shape[1] : 0,
        .out = s->hidden[b->slot] + raw->token * b->in->hidden_stride,
        .stride = b->in->hidden_stride,
    };
}

// True if the rows of `more` directly follow those of `before` in memory and can be converted by the same call.
static bool continues(const struct expertd_device_convert_input *before, const struct expertd_device_convert_input *more) {
    size_t bytes = (size_t)before->rows * before->width * expertd_dtype_size(before->from);
    return before->from == more->from && !before->scales && !more->scales &&
           (const char *)more->data == (const char *)before->data + bytes;
}

static FALLIBLE convert(const struct batch *b, const struct expertd_device_convert_input *conversion) {
    if (conversion->rows > 0) {
        EXPERTD_DEVICES_CALL(b->engine->devices, 0, convert_input, conversion);
    }
    return OK;
}

FALLIBLE device_input_convert(struct batch *b) {
    TRY(exchange_ready(b->engine->exchange));
    struct expertd_device_error error;
    const struct expertd_devices *devices = b->engine->devices;
    TRY(expertd_devices_check(devices, 0, devices->table->await_upload(devices->all[0], &error), &error));
    struct expertd_device_convert_input pending = {.rows = 0};
    struct raw_rows raw;
    for (struct raw_rows_iterator in = {.b = b}; next_request(&in, &raw);) {
        if (raw.in_d || raw.request->tokens == 0) {
            continue;
        }
        struct expertd_device_convert_input more = conversion_of(b, &raw);
        if (pending.rows > 0 && continues(&pending, &more)) {
            pending.rows += more.rows;
            continue;
        }
        TRY(convert(b, &pending));
        pending = more;
    }
    return convert(b, &pending);
}

void device_input_abandon(struct batch *b) {
    struct expertd_device_error error;
    const struct expertd_devices *devices = b->engine->devices;
    (void)devices->table->await_upload(devices->all[0], &error); // the error was reported before
}
