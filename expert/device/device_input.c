// Rows are sent in as few copies as possible. Rows in lent memory (engine_options.lent) are read by the device where they are; all
// others are copied into pinned memory first.
#include "expert/device/device_input.h"

#include <string.h>

#include "expert/device/device_state.h"

// DIRECT_MIN: below it a copy on the host takes no longer than the command for a GPU to read the row, and small rows share one
// copy.
enum { DIRECT_MIN = 32 << 10, LANDING_ALIGN = 16, CHUNK = 256 << 10 };

static size_t aligned(size_t bytes) {
    return (bytes + LANDING_ALIGN - 1) / LANDING_ALIGN * LANDING_ALIGN;
}

// The offsets of a request's rows and scales in `raw`, and in `staging` where they are staged.
struct landing {
    const struct layer_request *request;
    size_t token; // its first in the batch
    size_t rows_at, rows_bytes, scales_at, scales_bytes;
    bool in_d; // they have the dtype and stride of the device's rows, and are copied to `hidden` instead
};

struct intake {
    const struct batch *b;
    size_t next, token, used;
};

static bool next_landing(struct intake *in, struct landing *out) {
    const struct batch *b = in->b;
    if (in->next == b->count) {
        return false;
    }
    const struct layer_request *request = &b->requests[in->next++];
    size_t row = b->layer->params.hidden_size * expertd_dtype_size(request->hidden.dtype);
    *out = (struct landing){
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

// Copies that continue each other are joined.
struct upload {
    char *to;
    const char *from;
    size_t bytes;
};

static FALLIBLE send(const struct batch *b, const struct upload *u) {
    if (u->bytes > 0) {
        EXPERTD_DEVICES_CALL(b->engine->devices, 0, upload_ahead, u->to, u->from, u->bytes);
    }
    return OK;
}

static FALLIBLE append(const struct batch *b, struct upload *pending, const struct upload *more) {
    bool goes_on = more->to == pending->to + pending->bytes && more->from == pending->from + pending->bytes;
    if (more->bytes == 0 || (pending->bytes > 0 && goes_on)) {
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

static void stage(const struct batch *b, size_t at, const void *from, size_t bytes) {
    struct upload copy = {b->in->staging + at, from, bytes};
    size_t chunks = (bytes + CHUNK - 1) / CHUNK;
    expertd_team_run(chunks > 1 ? b->engine->team : NULL, chunks, copy_chunk, &copy);
}

static bool is_lent(const struct engine_lent *lent, const void *data, size_t bytes) {
    uintptr_t first = (uintptr_t)lent->memory, at = (uintptr_t)data;
    return at >= first && at - first < lent->bytes && bytes <= lent->bytes - (at - first);
}

// exchange_alive: a kernel of a batch that was given up may still be in the device's stream, and would overwrite these rows.
err_t device_input(struct batch *b, uint64_t *rows_direct) {
    TRY(exchange_alive(b->engine->exchange));
    const struct device_scratch *s = &b->engine->device->scratch[0];
    struct upload pending = {0};
    struct landing l;
    for (struct intake in = {.b = b}; next_landing(&in, &l);) {
        const char *rows = l.request->hidden.data;
        if (l.rows_bytes >= DIRECT_MIN && is_lent(&b->engine->lent, rows, l.rows_bytes)) {
            *rows_direct += l.request->tokens;
        } else {
            stage(b, l.rows_at, rows, l.rows_bytes);
            rows = b->in->staging + l.rows_at;
        }
        char *to = l.in_d ? s->hidden[b->slot] + l.token * b->in->hidden_stride : s->raw[b->slot] + l.rows_at;
        bool staged = rows == b->in->staging + l.rows_at; // its padding may be copied too, so that the next copy continues it
        TRY(append(b, &pending, &(struct upload){to, rows, staged && !l.in_d ? aligned(l.rows_bytes) : l.rows_bytes}));
        if (l.scales_bytes > 0) {
            stage(b, l.scales_at, l.request->hidden_scale.data, l.scales_bytes);
            struct upload scales = {s->raw[b->slot] + l.scales_at, b->in->staging + l.scales_at, l.scales_bytes};
            TRY(append(b, &pending, &scales));
        }
    }
    return send(b, &pending);
}

// ---- conversion on the device

static struct expertd_device_convert_input conversion_of(const struct batch *b, const struct landing *l) {
    const struct device_scratch *s = &b->engine->device->scratch[0];
    const struct expertd_tensor_view *scale = &l->request->hidden_scale;
    return (struct expertd_device_convert_input){
        .from = l->request->hidden.dtype,
        .to = b->engine->model->compute_dtype,
        .rows = (uint32_t)l->request->tokens,
        .width = b->layer->params.hidden_size,
        .data = s->raw[b->slot] + l->rows_at,
        .scales = l->scales_bytes > 0 ? (const float *)(const void *)(s->raw[b->slot] + l->scales_at) : NULL,
        .scale_columns = l->scales_bytes > 0 && scale->rank == 2 ? (uint32_t)scale->shape[1] : 0,
        .out = s->hidden[b->slot] + l->token * b->in->hidden_stride,
        .stride = b->in->hidden_stride,
    };
}

// True where `more` begins in memory where `before` ends; their tokens follow each other.
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
    TRY(expertd_devices_check(devices, 0, devices->table->await_ahead(devices->all[0], &error), &error));
    struct expertd_device_convert_input pending = {.rows = 0};
    struct landing l;
    for (struct intake in = {.b = b}; next_landing(&in, &l);) {
        if (l.in_d || l.request->tokens == 0) {
            continue;
        }
        struct expertd_device_convert_input more = conversion_of(b, &l);
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
    (void)devices->table->await_ahead(devices->all[0], &error); // the error was reported before
}
