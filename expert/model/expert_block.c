#include "expert/model/expert_block.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "expert/checkpoint/digest.h"

enum { PAGE = 4096 };

FALLIBLE expert_block_over(void *data, size_t bytes, struct expert_block **out) {
    *out = calloc(1, sizeof **out);
    if (!*out) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for an expert's block");
    }
    atomic_init(&(*out)->references, 1);
    (*out)->data = data;
    (*out)->bytes = bytes;
    return OK;
}

FALLIBLE expert_block_create(size_t bytes, const struct topology_node *node, struct expert_block **out) {
    TRY(expert_block_over(NULL, bytes, out));
    err_t e = arena_init(&(*out)->mapping, bytes);
    if (err_is(e)) {
        expert_block_drop(*out);
        *out = NULL;
        return e;
    }
    (*out)->data = (*out)->mapping.base;
    topology_prefer(node, (*out)->data, bytes);
    return OK;
}

static uint64_t digest_of(const void *data, size_t bytes) {
    struct digest digest;
    digest_init(&digest);
    digest_update(&digest, data, bytes);
    return digest_64(&digest);
}

static FALLIBLE fill_copy(struct expert_block *from, const struct block_copier *copier, const struct topology_node *node,
                          struct expert_block *to) {
    TRY(copier->reserve ? copier->reserve(copier->context, from->bytes, &to->mapping) : arena_init(&to->mapping, from->bytes));
    to->data = to->mapping.base;
    topology_prefer(node, to->data, to->bytes);
    if (!from->has_digest) {
        from->digest = digest_of(from->data, from->bytes);
        from->has_digest = true;
    }
    if (copier->copy) {
        TRY(copier->copy(copier->context, to->data, from->data, from->bytes));
    } else {
        memcpy(to->data, from->data, from->bytes);
    }
    to->digest = digest_of(to->data, to->bytes);
    to->has_digest = true;
    if (to->digest != from->digest) {
        FAIL(EXPERTD_ERR_IO, "the copy of %zu bytes has digest %016llx, but its source has %016llx: the memory may be defective",
             from->bytes, (unsigned long long)to->digest, (unsigned long long)from->digest);
    }
    return OK;
}

FALLIBLE expert_block_copy(struct expert_block *from, const struct block_copier *copier, const struct topology_node *node,
                           struct expert_block **out) {
    *out = NULL;
    struct expert_block *to;
    TRY(expert_block_over(NULL, from->bytes, &to));
    err_t e = fill_copy(from, copier, node, to);
    if (err_is(e)) {
        expert_block_drop(to);
        return e;
    }
    *out = to;
    return OK;
}

struct expert_block *expert_block_share(struct expert_block *block) {
    atomic_fetch_add(&block->references, 1);
    return block;
}

// A part of the arena cannot be unmapped, but its full pages can be returned to the system.
static void release_pages(void *data, size_t bytes) {
    uintptr_t begin = ((uintptr_t)data + PAGE - 1) / PAGE * PAGE, end = ((uintptr_t)data + bytes) / PAGE * PAGE;
    if (end > begin) {
        (void)madvise((char *)data + (begin - (uintptr_t)data), end - begin, MADV_DONTNEED);
    }
}

void expert_block_release(const struct expert_block *block) {
    release_pages(block->data, block->bytes);
}

void expert_block_drop(struct expert_block *block) {
    if (!block || atomic_fetch_sub(&block->references, 1) > 1) {
        return;
    }
    if (block->mapping.base) {
        arena_deinit(&block->mapping);
    } else if (block->data) {
        release_pages(block->data, block->bytes);
    }
    free(block);
}

static void *const *bind_column(struct expert_block *const *blocks, size_t groups, size_t at, void **column) {
    for (size_t g = 0; g < groups; g++) {
        column[g] = (char *)blocks[g]->data + at;
    }
    return column;
}

void expert_weights_bind(const struct expert_shape *shape, struct expert_block *const *blocks, size_t groups, void **table,
                         struct expert_weights *out) {
    *out = (struct expert_weights){0};
    struct expertd_packed_weights *matrices[] = {&out->gate, &out->up, &out->down};
    void *const **biases[] = {&out->gate_bias, &out->up_bias, &out->down_bias};
    for (size_t i = 0; i < EXPERT_MATRICES; i++) {
        if (shape->matrix[i].group_bytes > 0) {
            *matrices[i] = shape->matrix[i];
            matrices[i]->groups = groups;
            matrices[i]->data = bind_column(blocks, groups, shape->matrix_at[i], table + 2 * i * groups);
        }
        if (shape->bias[i] > 0) {
            *biases[i] = bind_column(blocks, groups, shape->bias_at[i], table + (2 * i + 1) * groups);
        }
    }
    void *const **orders[] = {&out->hidden_order, &out->inner_order};
    for (size_t i = 0; i < EXPERT_ORDERS; i++) {
        if (shape->order[i] > 0) {
            *orders[i] = bind_column(blocks, groups, shape->order_at[i], table + (2 * EXPERT_MATRICES + i) * groups);
        }
    }
}
