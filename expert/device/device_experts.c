#include "expert/device/device_experts.h"

#include <string.h>

#include "expert/checkpoint/digest.h"
#include "expertd/kernels/quantised.h"
#include "kernels/device/device_codes.h"

enum { PIECE_ALIGN = 256 }; // what a device's own allocations have

void *device_pool_take(struct device_pool *pool, size_t bytes) {
    void *at = pool->memory ? pool->memory + pool->used : NULL;
    pool->used += (bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    return at;
}

void device_shape_of(const struct expert_weights *w, struct expert_shape *out) {
    const struct expertd_packed_weights *matrices[EXPERT_MATRICES] = {&w->gate, &w->up, &w->down};
    void *const *const biases[EXPERT_MATRICES] = {w->gate_bias, w->up_bias, w->down_bias};
    *out = (struct expert_shape){0};
    for (int i = 0; i < EXPERT_MATRICES; i++) {
        if (matrices[i]->data) {
            out->matrix[i] = *matrices[i];
        }
        out->bias[i] = biases[i] ? matrices[i]->n : 0;
    }
    out->order[EXPERT_HIDDEN_ORDER] = w->hidden_order ? w->up.k : 0;
    out->order[EXPERT_INNER_ORDER] = w->inner_order ? w->down.k : 0;
}

static bool has_globals(const struct expertd_packed_weights *m) {
    return m->format && m->format->global != EXPERTD_GLOBAL_NONE && !m->format->scale_of_panel;
}

// Of one slot of a matrix: its values or codes, scales, zero points, the global scale; 0: it has none.
enum { PIECE_DATA, PIECE_SCALES, PIECE_ZEROS, PIECE_GLOBAL, PIECES };

static void pieces_of(const struct expertd_packed_weights *m, size_t bytes[PIECES]) {
    memset(bytes, 0, PIECES * sizeof *bytes);
    if (m->group_bytes == 0) {
        return;
    }
    if (!m->format) {
        bytes[PIECE_DATA] = m->n * m->k * expertd_dtype_size(m->dtype);
        return;
    }
    struct device_codes_size codes = device_codes_bytes(m->format, m->n, m->k);
    bytes[PIECE_DATA] = codes.codes;
    bytes[PIECE_SCALES] = codes.scales;
    bytes[PIECE_ZEROS] = codes.zeros;
    bytes[PIECE_GLOBAL] = has_globals(m) ? sizeof(float) : 0;
}

static size_t sum_of(const size_t bytes[PIECES]) {
    size_t sum = 0;
    for (int p = 0; p < PIECES; p++) {
        sum += bytes[p];
    }
    return sum;
}

size_t device_staging_bytes(const struct expert_shape *shape) {
    size_t most = sizeof(float), bytes[PIECES];
    for (int i = 0; i < EXPERT_MATRICES; i++) {
        pieces_of(&shape->matrix[i], bytes);
        size_t sum = sum_of(bytes), bias = shape->bias[i] * sizeof(float);
        most = sum > most ? sum : most;
        most = bias > most ? bias : most;
    }
    for (int o = 0; o < EXPERT_ORDERS; o++) {
        most = shape->order[o] * sizeof(uint32_t) > most ? shape->order[o] * sizeof(uint32_t) : most;
    }
    return most;
}

size_t device_slot_bytes(const struct expert_shape *shape) {
    struct device_pool counted = {0};
    struct device_experts unused;
    device_experts_lay_out(&counted, shape, 1, &unused);
    return counted.used;
}

// ---- laying out

// A part that has no bytes is none.
static void *add_part(struct device_pool *pool, struct device_experts *out, size_t bytes) {
    if (bytes == 0) {
        return NULL;
    }
    char *base = device_pool_take(pool, out->slots * bytes);
    INVARIANT(out->part_count < DEVICE_PARTS_MAX);
    out->parts[out->part_count++] = (struct device_part){base, bytes};
    return base;
}

static void lay_out_matrix(struct device_pool *pool, const struct expertd_packed_weights *m, struct device_experts *out,
                           struct expertd_device_matrix *matrix) {
    size_t bytes[PIECES];
    pieces_of(m, bytes);
    *matrix = (struct expertd_device_matrix){.dtype = m->dtype, .groups = out->slots, .n = (uint32_t)m->n, .k = (uint32_t)m->k};
    matrix->data = add_part(pool, out, bytes[PIECE_DATA]);
    const void *scales = add_part(pool, out, bytes[PIECE_SCALES]);
    const uint8_t *zeros = add_part(pool, out, bytes[PIECE_ZEROS]);
    const float *globals = add_part(pool, out, bytes[PIECE_GLOBAL]);
    if (m->format) {
        matrix->quantised =
            (struct expertd_device_quantised){.format = *m->format, .scales = scales, .zeros = zeros, .globals = globals};
    }
}

void device_experts_lay_out(struct device_pool *pool, const struct expert_shape *shape, uint32_t slots,
                            struct device_experts *out) {
    *out = (struct device_experts){.slots = slots};
    for (int i = 0; i < EXPERT_MATRICES; i++) {
        if (shape->matrix[i].group_bytes > 0) {
            lay_out_matrix(pool, &shape->matrix[i], out, &out->matrix[i]);
        }
    }
    for (int i = 0; i < EXPERT_MATRICES; i++) {
        out->bias[i] = add_part(pool, out, shape->bias[i] * sizeof(float));
    }
    const uint32_t *hidden = add_part(pool, out, shape->order[EXPERT_HIDDEN_ORDER] * sizeof(uint32_t));
    const uint32_t *inner = add_part(pool, out, shape->order[EXPERT_INNER_ORDER] * sizeof(uint32_t));
    out->matrix[EXPERT_GATE].quantised.order = out->matrix[EXPERT_UP].quantised.order =
        hidden; // which read their rows in one order
    out->matrix[EXPERT_DOWN].quantised.order = inner;
}

// ---- filling

static struct expertd_device *device_of(const struct device_lane *lane) {
    return lane->devices->all[lane->device];
}

static FALLIBLE check(const struct device_lane *lane, enum expertd_device_code code, const struct expertd_device_error *error) {
    return expertd_devices_check(lane->devices, lane->device, code, error);
}

static FALLIBLE copy(const struct device_lane *lane, enum expertd_device_way way, void *to, const void *from, size_t bytes) {
    struct expertd_device_error error;
    return check(lane, lane->devices->table->copy(device_of(lane), way, to, from, bytes, &error), &error);
}

// What the staging holds, piece after piece, to the slot's parts from `*part` on; the staging is free again on return.
static FALLIBLE send_pieces(const struct device_experts *e, uint32_t slot, const size_t *bytes, int pieces, uint32_t *part,
                            const struct device_lane *lane) {
    const char *from = lane->staging;
    for (int p = 0; p < pieces; p++) {
        if (bytes[p] > 0) {
            const struct device_part *to = &e->parts[(*part)++];
            INVARIANT(to->bytes == bytes[p]);
            TRY(copy(lane, EXPERTD_DEVICE_UPLOAD, to->base + slot * to->bytes, from, bytes[p]));
            from += bytes[p];
        }
    }
    return expertd_devices_wait(lane->devices, lane->device);
}

static void lock(const struct device_lane *lane) {
    if (lane->mutex) {
        pthread_mutex_lock(lane->mutex);
    }
}

static void unlock(const struct device_lane *lane) {
    if (lane->mutex) {
        pthread_mutex_unlock(lane->mutex);
    }
}

static FALLIBLE send_staged(const struct device_experts *e, uint32_t slot, const size_t *bytes, int pieces, uint32_t *part,
                            const struct device_lane *lane) {
    lock(lane);
    err_t sent = send_pieces(e, slot, bytes, pieces, part, lane);
    unlock(lane);
    return sent;
}

static void stage_matrix(const struct expertd_packed_weights *m, size_t group, const size_t bytes[PIECES], char *staging) {
    if (!m->format) {
        expertd_unpack_weights(m, group, staging);
        return;
    }
    char *scales = staging + bytes[PIECE_DATA], *zeros = scales + bytes[PIECE_SCALES];
    device_codes_pack(m->format, m->data[group], m->n, m->k, staging, scales, zeros);
    memcpy(zeros + bytes[PIECE_ZEROS], m->data[group], bytes[PIECE_GLOBAL]); // its panels begin with it
}

static FALLIBLE put_vector(const struct device_experts *e, uint32_t slot, void *const *vectors, size_t group, size_t bytes,
                           uint32_t *part, const struct device_lane *lane) {
    if (!vectors || bytes == 0) {
        return OK;
    }
    memcpy(lane->staging, vectors[group], bytes);
    return send_staged(e, slot, &bytes, 1, part, lane);
}

FALLIBLE device_experts_put(const struct device_experts *e, uint32_t slot, const struct expert_weights *w, size_t group,
                            const struct device_lane *lane) {
    const struct expertd_packed_weights *matrices[EXPERT_MATRICES] = {&w->gate, &w->up, &w->down};
    void *const *const biases[EXPERT_MATRICES] = {w->gate_bias, w->up_bias, w->down_bias};
    uint32_t part = 0;
    INVARIANT(slot < e->slots);
    for (int i = 0; i < EXPERT_MATRICES; i++) {
        size_t bytes[PIECES];
        if (e->matrix[i].data) {
            pieces_of(matrices[i], bytes);
            INVARIANT(sum_of(bytes) <= lane->staging_bytes);
            stage_matrix(matrices[i], group, bytes, lane->staging);
            TRY(send_staged(e, slot, bytes, PIECES, &part, lane));
        }
    }
    for (int i = 0; i < EXPERT_MATRICES; i++) {
        TRY(put_vector(e, slot, biases[i], group, matrices[i]->n * sizeof(float), &part, lane));
    }
    TRY(put_vector(e, slot, w->hidden_order, group, w->up.k * sizeof(uint32_t), &part, lane));
    TRY(put_vector(e, slot, w->inner_order, group, w->down.k * sizeof(uint32_t), &part, lane));
    INVARIANT(part == e->part_count);
    return OK;
}

FALLIBLE device_put(const struct device_lane *lane, void *to, const void *from, size_t bytes) {
    for (size_t done = 0; done < bytes; done += lane->staging_bytes) {
        size_t more = bytes - done < lane->staging_bytes ? bytes - done : lane->staging_bytes;
        memcpy(lane->staging, (const char *)from + done, more);
        TRY(copy(lane, EXPERTD_DEVICE_UPLOAD, (char *)to + done, lane->staging, more));
        TRY(expertd_devices_wait(lane->devices, lane->device));
    }
    return OK;
}

FALLIBLE device_put_plain(const struct device_lane *lane, const struct expertd_packed_weights *packed, void *to) {
    size_t bytes = packed->n * packed->k * expertd_dtype_size(packed->dtype);
    INVARIANT(!packed->format && bytes <= lane->staging_bytes);
    expertd_unpack_weights(packed, 0, lane->staging);
    TRY(copy(lane, EXPERTD_DEVICE_UPLOAD, to, lane->staging, bytes));
    return expertd_devices_wait(lane->devices, lane->device);
}

// ---- between devices

FALLIBLE device_experts_copy(const struct device_experts *e, uint32_t slot, const struct device_lane *lane,
                             const struct device_experts *from, uint32_t from_slot, const struct device_lane *from_lane) {
    INVARIANT(slot < e->slots && from_slot < from->slots && e->part_count == from->part_count);
    for (uint32_t p = 0; p < e->part_count; p++) {
        size_t bytes = e->parts[p].bytes;
        void *to = e->parts[p].base + slot * bytes;
        const void *source = from->parts[p].base + from_slot * bytes;
        if (lane->device == from_lane->device) {
            TRY(copy(lane, EXPERTD_DEVICE_LOCAL, to, source, bytes));
        } else {
            struct expertd_device_error error;
            TRY(check(lane, lane->devices->table->copy_from(device_of(lane), to, device_of(from_lane), source, bytes, &error),
                      &error));
        }
    }
    return expertd_devices_wait(lane->devices, lane->device);
}

FALLIBLE device_experts_digest(const struct device_experts *e, uint32_t slot, const struct device_lane *lane, uint64_t *out) {
    struct digest digest;
    digest_init(&digest);
    for (uint32_t p = 0; p < e->part_count; p++) {
        const struct device_part *part = &e->parts[p];
        for (size_t done = 0; done < part->bytes; done += lane->staging_bytes) {
            size_t more = part->bytes - done < lane->staging_bytes ? part->bytes - done : lane->staging_bytes;
            TRY(copy(lane, EXPERTD_DEVICE_DOWNLOAD, lane->staging, part->base + slot * part->bytes + done, more));
            TRY(expertd_devices_wait(lane->devices, lane->device));
            digest_update(&digest, lane->staging, more);
        }
    }
    *out = digest_64(&digest);
    return OK;
}
