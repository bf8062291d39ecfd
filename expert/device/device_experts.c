#include "expert/device/device_experts.h"

#include <string.h>

#include "expert/checkpoint/digest.h"
#include "expertd/kernels/quantised.h"
#include "kernels/device/device_codes.h"

enum { PIECE_ALIGN = 256 }; // the alignment of device allocations

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

// The pieces of one slot of a matrix: values or codes, scales, zero points, the global scale. A size of 0: the matrix has none.
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
    const struct expertd_quantised_format held = device_codes_format(m->format);
    struct device_codes_size codes = device_codes_bytes(&held, m->n, m->k);
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

// Adds an array for all slots, `bytes` for each. Without bytes no part is added and the result is NULL.
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
        matrix->quantised = (struct expertd_device_quantised){
            .format = device_codes_format(m->format), .scales = scales, .zeros = zeros, .globals = globals};
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
        hidden; // gate and up read their rows in the same order
    out->matrix[EXPERT_DOWN].quantised.order = inner;
}

// ---- filling

static struct expertd_device *device_of(const struct device_staging *staging) {
    return staging->devices->all[staging->device];
}

static FALLIBLE check(const struct device_staging *staging, enum expertd_device_code code,
                      const struct expertd_device_error *error) {
    return expertd_devices_check(staging->devices, staging->device, code, error);
}

static FALLIBLE copy(const struct device_staging *staging, enum expertd_device_copy_kind kind, void *to, const void *from,
                     size_t bytes) {
    struct expertd_device_error error;
    return check(staging, staging->devices->table->copy(device_of(staging), kind, to, from, bytes, &error), &error);
}

// Copies the pieces in the staging buffer to the slot's parts, starting with part *part. The buffer is free again on return.
static FALLIBLE send_pieces(const struct device_experts *e, uint32_t slot, const size_t *bytes, int pieces, uint32_t *part,
                            const struct device_staging *staging) {
    const char *from = staging->memory;
    for (int p = 0; p < pieces; p++) {
        if (bytes[p] > 0) {
            const struct device_part *to = &e->parts[(*part)++];
            INVARIANT(to->bytes == bytes[p]);
            TRY(copy(staging, EXPERTD_DEVICE_UPLOAD, to->base + slot * to->bytes, from, bytes[p]));
            from += bytes[p];
        }
    }
    return expertd_devices_wait(staging->devices, staging->device);
}

static void lock(const struct device_staging *staging) {
    if (staging->mutex) {
        pthread_mutex_lock(staging->mutex);
    }
}

static void unlock(const struct device_staging *staging) {
    if (staging->mutex) {
        pthread_mutex_unlock(staging->mutex);
    }
}

static FALLIBLE send_staged(const struct device_experts *e, uint32_t slot, const size_t *bytes, int pieces, uint32_t *part,
                            const struct device_staging *staging) {
    lock(staging);
    err_t sent = send_pieces(e, slot, bytes, pieces, part, staging);
    unlock(staging);
    return sent;
}

static void stage_matrix(const struct expertd_packed_weights *m, size_t group, const size_t bytes[PIECES], char *staging) {
    if (!m->format) {
        expertd_unpack_weights(m, group, staging);
        return;
    }
    char *scales = staging + bytes[PIECE_DATA], *zeros = scales + bytes[PIECE_SCALES];
    device_codes_pack(m->format, m->data[group], m->n, m->k, staging, scales, zeros);
    memcpy(zeros + bytes[PIECE_ZEROS], m->data[group], bytes[PIECE_GLOBAL]); // the packed panels begin with the global scale
}

static FALLIBLE put_vector(const struct device_experts *e, uint32_t slot, void *const *vectors, size_t group, size_t bytes,
                           uint32_t *part, const struct device_staging *staging) {
    if (!vectors || bytes == 0) {
        return OK;
    }
    memcpy(staging->memory, vectors[group], bytes);
    return send_staged(e, slot, &bytes, 1, part, staging);
}

FALLIBLE device_experts_put(const struct device_experts *e, uint32_t slot, const struct expert_weights *w, size_t group,
                            const struct device_staging *staging) {
    const struct expertd_packed_weights *matrices[EXPERT_MATRICES] = {&w->gate, &w->up, &w->down};
    void *const *const biases[EXPERT_MATRICES] = {w->gate_bias, w->up_bias, w->down_bias};
    uint32_t part = 0;
    INVARIANT(slot < e->slots);
    for (int i = 0; i < EXPERT_MATRICES; i++) {
        size_t bytes[PIECES];
        if (e->matrix[i].data) {
            pieces_of(matrices[i], bytes);
            INVARIANT(sum_of(bytes) <= staging->bytes);
            stage_matrix(matrices[i], group, bytes, staging->memory);
            TRY(send_staged(e, slot, bytes, PIECES, &part, staging));
        }
    }
    for (int i = 0; i < EXPERT_MATRICES; i++) {
        TRY(put_vector(e, slot, biases[i], group, matrices[i]->n * sizeof(float), &part, staging));
    }
    TRY(put_vector(e, slot, w->hidden_order, group, w->up.k * sizeof(uint32_t), &part, staging));
    TRY(put_vector(e, slot, w->inner_order, group, w->down.k * sizeof(uint32_t), &part, staging));
    INVARIANT(part == e->part_count);
    return OK;
}

FALLIBLE device_put(const struct device_staging *staging, void *to, const void *from, size_t bytes) {
    for (size_t done = 0; done < bytes; done += staging->bytes) {
        size_t more = bytes - done < staging->bytes ? bytes - done : staging->bytes;
        memcpy(staging->memory, (const char *)from + done, more);
        TRY(copy(staging, EXPERTD_DEVICE_UPLOAD, (char *)to + done, staging->memory, more));
        TRY(expertd_devices_wait(staging->devices, staging->device));
    }
    return OK;
}

FALLIBLE device_put_plain(const struct device_staging *staging, const struct expertd_packed_weights *packed, void *to) {
    size_t bytes = packed->n * packed->k * expertd_dtype_size(packed->dtype);
    INVARIANT(!packed->format && bytes <= staging->bytes);
    expertd_unpack_weights(packed, 0, staging->memory);
    TRY(copy(staging, EXPERTD_DEVICE_UPLOAD, to, staging->memory, bytes));
    return expertd_devices_wait(staging->devices, staging->device);
}

// ---- between devices

FALLIBLE device_experts_copy(const struct device_experts *e, uint32_t slot, const struct device_staging *staging,
                             const struct device_experts *from, uint32_t from_slot, const struct device_staging *from_staging) {
    INVARIANT(slot < e->slots && from_slot < from->slots && e->part_count == from->part_count);
    for (uint32_t p = 0; p < e->part_count; p++) {
        size_t bytes = e->parts[p].bytes;
        void *to = e->parts[p].base + slot * bytes;
        const void *source = from->parts[p].base + from_slot * bytes;
        if (staging->device == from_staging->device) {
            TRY(copy(staging, EXPERTD_DEVICE_LOCAL, to, source, bytes));
        } else {
            struct expertd_device_error error;
            TRY(check(staging,
                      staging->devices->table->copy_from(device_of(staging), to, device_of(from_staging), source, bytes, &error),
                      &error));
        }
    }
    return expertd_devices_wait(staging->devices, staging->device);
}

FALLIBLE device_experts_digest(const struct device_experts *e, uint32_t slot, const struct device_staging *staging, uint64_t *out) {
    struct digest digest;
    digest_init(&digest);
    for (uint32_t p = 0; p < e->part_count; p++) {
        const struct device_part *part = &e->parts[p];
        for (size_t done = 0; done < part->bytes; done += staging->bytes) {
            size_t more = part->bytes - done < staging->bytes ? part->bytes - done : staging->bytes;
            TRY(copy(staging, EXPERTD_DEVICE_DOWNLOAD, staging->memory, part->base + slot * part->bytes + done, more));
            TRY(expertd_devices_wait(staging->devices, staging->device));
            digest_update(&digest, staging->memory, more);
        }
    }
    *out = digest_64(&digest);
    return OK;
}
