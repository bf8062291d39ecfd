#include "daemon/grpc/message/pool.h"

#include <stdlib.h>
#include <string.h>

// Two classes per power of two (1, 1.5, 2, 3, 4 ... times the smallest), so that at most a third of a buffer is unused.
enum { SMALLEST_BYTES = 4096 };

static size_t class_bytes(unsigned size_class) {
    size_t power = (size_t)SMALLEST_BYTES << (size_class / 2);
    return size_class % 2 ? power + power / 2 : power;
}

static unsigned class_of(size_t length) {
    unsigned size_class = 0;
    while (size_class < POOL_CLASSES - 1 && class_bytes(size_class) < length) {
        size_class++;
    }
    return size_class;
}

err_t pool_init(struct pool *pool, uint64_t idle_bytes_max) {
    memset(pool, 0, sizeof *pool);
    pool->idle_bytes_max = idle_bytes_max;
    int failed = pthread_mutex_init(&pool->mutex, NULL);
    if (failed) {
        FAIL(EXPERTD_ERR_INTERNAL, "cannot create the message pool's mutex: %s", strerror(failed));
    }
    return OK;
}

static void buffer_free(struct pool_buffer *buffer) {
    free(buffer->buffer.data);
    free(buffer);
}

void pool_deinit(struct pool *pool) {
    slab_deinit(&pool->borrowed);
    for (unsigned i = 0; i < POOL_CLASSES; i++) {
        while (pool->idle[i]) {
            struct pool_buffer *buffer = pool->idle[i];
            pool->idle[i] = buffer->next;
            buffer_free(buffer);
        }
    }
    while (pool->records) {
        struct pool_buffer *record = pool->records;
        pool->records = record->next;
        free(record);
    }
    pthread_mutex_destroy(&pool->mutex);
}

static struct pool_buffer *buffer_new(unsigned size_class) {
    struct pool_buffer *buffer = calloc(1, sizeof *buffer);
    if (!buffer) {
        return NULL;
    }
    buffer->size_class = size_class;
    buffer->buffer.capacity = class_bytes(size_class);
    buffer->buffer.data = aligned_alloc(POOL_ALIGNMENT, buffer->buffer.capacity);
    if (!buffer->buffer.data) {
        free(buffer);
        return NULL;
    }
    return buffer;
}

struct rpc_buffer *pool_take(struct pool *pool, size_t length) {
    unsigned size_class = class_of(length);
    if (class_bytes(size_class) < length) {
        return NULL;
    }
    pthread_mutex_lock(&pool->mutex);
    struct pool_buffer *buffer = pool->idle[size_class];
    if (buffer) {
        pool->idle[size_class] = buffer->next;
        pool->idle_bytes -= buffer->buffer.capacity;
    }
    pthread_mutex_unlock(&pool->mutex);
    if (!buffer) {
        buffer = buffer_new(size_class);
    }
    if (!buffer) {
        return NULL;
    }
    buffer->buffer.length = length;
    return &buffer->buffer;
}

// A record without memory of its own, reused where one is idle.
static struct pool_buffer *take_record(struct pool *pool, void **data, size_t *capacity, size_t length) {
    struct pool_buffer *record = NULL;
    pthread_mutex_lock(&pool->mutex);
    *data = pool->borrowed.memory ? slab_take(&pool->borrowed, length, capacity) : NULL;
    if (*data && pool->records) {
        record = pool->records;
        pool->records = record->next;
    }
    pthread_mutex_unlock(&pool->mutex);
    return *data && !record ? calloc(1, sizeof *record) : record;
}

struct rpc_buffer *pool_take_borrowed(struct pool *pool, size_t length) {
    void *data = NULL;
    size_t capacity = 0;
    struct pool_buffer *buffer = length >= SLAB_UNIT ? take_record(pool, &data, &capacity, length) : NULL;
    if (data && !buffer) {
        pthread_mutex_lock(&pool->mutex);
        slab_give(&pool->borrowed, data);
        pthread_mutex_unlock(&pool->mutex);
    }
    if (!buffer) {
        return pool_take(pool, length);
    }
    buffer->buffer.data = data;
    buffer->buffer.capacity = capacity;
    buffer->buffer.length = length;
    buffer->is_borrowed = true;
    return &buffer->buffer;
}

FALLIBLE pool_borrow_memory(struct pool *pool, void *memory, size_t bytes) {
    struct slab borrowed;
    TRY(slab_init(&borrowed, memory, bytes));
    pthread_mutex_lock(&pool->mutex);
    INVARIANT(!pool->borrowed.memory);
    pool->borrowed = borrowed;
    pthread_mutex_unlock(&pool->mutex);
    return OK;
}

void pool_return_memory(struct pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    slab_deinit(&pool->borrowed);
    pthread_mutex_unlock(&pool->mutex);
}

static void give_borrowed(struct pool *pool, struct pool_buffer *buffer) {
    pthread_mutex_lock(&pool->mutex);
    slab_give(&pool->borrowed, buffer->buffer.data);
    buffer->next = pool->records;
    pool->records = buffer;
    pthread_mutex_unlock(&pool->mutex);
}

void pool_give(struct pool *pool, struct rpc_buffer *given) {
    struct pool_buffer *buffer = (struct pool_buffer *)(void *)given;
    INVARIANT(!buffer->deferred);
    if (buffer->is_borrowed) {
        give_borrowed(pool, buffer);
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    bool keep = pool->idle_bytes + buffer->buffer.capacity <= pool->idle_bytes_max;
    if (keep) {
        buffer->next = pool->idle[buffer->size_class];
        pool->idle[buffer->size_class] = buffer;
        pool->idle_bytes += buffer->buffer.capacity;
    }
    pthread_mutex_unlock(&pool->mutex);
    if (!keep) {
        buffer_free(buffer);
    }
}
