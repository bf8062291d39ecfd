// llama.cpp's side of tests/bench/peers/run: MUL_MAT_ID on the same file as peer-ours, with the same protocol on standard input and
// output. Built by --install against the ggml of llama-cpp-python.
//
//     ggml-product DTYPE GROUPS ROWS K N SETS THREADS FILE OUTPUT
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

enum { PAGE = 4096, TENSOR_ROOM = 1 << 20, HUGE_PAGE = 2 << 20 };

// A dtype of `run`, its ggml type and the layout of a block: scales, then the codes of `run` k, of which the first half is in the
// low nibbles of the bytes and the second half in the high nibbles. bits 0: the file has the weights as ggml has them.
struct product_type {
    const char *name;
    enum ggml_type type;
    unsigned bits, block, run, scale_k, scale_bytes;
};
static const struct product_type TYPES[] = {
    {"f32", .type = GGML_TYPE_F32},
    {"bf16", .type = GGML_TYPE_BF16},
    {"mxfp4", GGML_TYPE_MXFP4, 4, 32, 32, 32, 1},
    {"nvfp4", GGML_TYPE_NVFP4, 4, 64, 16, 16, 1},
    {"int4-32", GGML_TYPE_Q4_0, 4, 32, 32, 32, 2},
    {"int8-32", GGML_TYPE_Q8_0, 8, 32, 32, 32, 2},
    {"q4_0", .type = GGML_TYPE_Q4_0},
    {"q4_1", .type = GGML_TYPE_Q4_1},
    {"q5_0", .type = GGML_TYPE_Q5_0},
    {"q5_1", .type = GGML_TYPE_Q5_1},
    {"q8_0", .type = GGML_TYPE_Q8_0},
    {"q2_k", .type = GGML_TYPE_Q2_K},
    {"q3_k", .type = GGML_TYPE_Q3_K},
    {"q4_k", .type = GGML_TYPE_Q4_K},
    {"q5_k", .type = GGML_TYPE_Q5_K},
    {"q6_k", .type = GGML_TYPE_Q6_K},
    {"iq4_nl", .type = GGML_TYPE_IQ4_NL},
    {"iq4_xs", .type = GGML_TYPE_IQ4_XS},
};
enum { TYPES_COUNT = sizeof TYPES / sizeof *TYPES };

struct shape {
    long groups, rows, k, n, sets;
};

static char *map_file(const char *path) {
    struct stat status;
    int fd = open(path, O_RDWR);
    if (fd < 0 || fstat(fd, &status) != 0) {
        perror(path);
        exit(1);
    }
    void *base = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    return base;
}

static char *take(char **at, size_t bytes) {
    char *part = *at;
    *at += (bytes + PAGE - 1) / PAGE * PAGE;
    return part;
}

// Allocates huge pages, as the other sides do for weights.
static void *reserve(size_t bytes) {
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        perror("weights");
        exit(1);
    }
    madvise(base, bytes, MADV_HUGEPAGE);
    return base;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void fill_rows(struct ggml_tensor *x, const char *lhs, enum ggml_type type) {
    size_t count = (size_t)ggml_nelements(x);
    float *to = x->data;
    if (type == GGML_TYPE_F32) {
        memcpy(to, lhs, count * sizeof *to);
    } else {
        ggml_bf16_to_fp32_row((const ggml_bf16_t *)lhs, to, (int64_t)count);
    }
}

static unsigned char code_at(const unsigned char *codes, unsigned bits, size_t i) {
    return bits == 8 ? codes[i] : (codes[i / 2] >> (i % 2 * 4)) & 15;
}

// Converts one block of scales and codes of the file to llama.cpp's layout.
static void code_block(const struct product_type *t, const unsigned char *codes, size_t first, const unsigned char *scales,
                       unsigned char *to) {
    size_t scale_bytes = t->block / t->scale_k * t->scale_bytes;
    memcpy(to, scales, scale_bytes);
    to += scale_bytes;
    if (t->bits == 8) {
        memcpy(to, codes + first, t->block);
        return;
    }
    for (unsigned run = 0; run < t->block; run += t->run) {
        for (unsigned j = 0; j < t->run / 2; j++) {
            unsigned char low = code_at(codes, t->bits, first + run + j);
            unsigned char high = code_at(codes, t->bits, first + run + t->run / 2 + j);
            *to++ = (unsigned char)(low | high << 4);
        }
    }
}

// Converts all weights of a set to the layout of llama.cpp's files.
static void code_weights(const struct product_type *t, size_t elements, const char *codes, const char *scales, char *to) {
    size_t scale_bytes = t->block / t->scale_k * t->scale_bytes, block_bytes = scale_bytes + t->block * t->bits / 8;
    for (size_t b = 0; b < elements / t->block; b++) {
        code_block(t, (const unsigned char *)codes, b * t->block, (const unsigned char *)scales + b * scale_bytes,
                   (unsigned char *)to + b * block_bytes);
    }
}

static void fill_ids(struct ggml_tensor *ids, const int32_t *sizes, long groups) {
    int32_t *to = ids->data;
    for (long g = 0; g < groups; g++) {
        for (int32_t r = 0; r < sizes[g]; r++) {
            *to++ = (int32_t)g;
        }
    }
}

// The buffer type into which llama.cpp would load these weights: one that repacks them, if there is one for the type.
static ggml_backend_buffer_type_t repacking_type(struct ggml_tensor *w, struct ggml_tensor *product) {
    ggml_backend_reg_t registry = ggml_backend_cpu_reg();
    ggml_backend_dev_t device = ggml_backend_reg_dev_get(registry, 0);
    ggml_backend_dev_get_extra_bufts_t extra = NULL;
    void *address = ggml_backend_reg_get_proc_address(registry, "ggml_backend_dev_get_extra_bufts");
    memcpy(&extra, &address, sizeof extra);
    for (ggml_backend_buffer_type_t *type = extra ? extra(device) : NULL; type && *type; type++) {
        ggml_backend_buffer_t probe = ggml_backend_buft_alloc_buffer(*type, 0);
        w->buffer = probe;
        bool fits = ggml_backend_dev_supports_op(device, product);
        w->buffer = NULL;
        ggml_backend_buffer_free(probe);
        if (fits) {
            return *type;
        }
    }
    return NULL;
}

// Makes copies of the weights in huge pages. The first is repacked if llama.cpp does so; the others are copies of it.
static char *place_weights(struct ggml_tensor *w, struct ggml_tensor *product, const char *weights, size_t sets) {
    size_t set_bytes = ggml_nbytes(w);
    ggml_backend_buffer_type_t type = repacking_type(w, product);
    char *copies;
    if (type) {
        ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(type, set_bytes * sets + HUGE_PAGE);
        uintptr_t base = ((uintptr_t)ggml_backend_buffer_get_base(buffer) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        copies = (char *)base;
        madvise(copies, set_bytes * sets, MADV_HUGEPAGE);
        ggml_backend_tensor_alloc(buffer, w, copies);
        ggml_backend_tensor_set(w, weights, 0, set_bytes);
        fprintf(stderr, "llama.cpp: %s\n", ggml_backend_buft_name(type));
    } else {
        copies = reserve(set_bytes * sets);
        memcpy(copies, weights, set_bytes);
        w->data = copies;
    }
    for (size_t s = 1; s < sets; s++) {
        memcpy(copies + set_bytes * s, copies, set_bytes);
    }
    return copies;
}

static const struct product_type *find_type(const char *name) {
    for (size_t i = 0; i < TYPES_COUNT; i++) {
        if (strcmp(name, TYPES[i].name) == 0) {
            return &TYPES[i];
        }
    }
    return NULL;
}

// Runs one graph for each input line; each repetition uses another copy of the weights.
static void serve(struct ggml_tensor *w, struct ggml_tensor *y, struct ggml_cgraph *graph, char *copies, size_t sets, int threads,
                  char *output) {
    size_t set_bytes = ggml_nbytes(w);
    struct ggml_cplan plan = ggml_graph_plan(graph, threads, NULL);
    plan.work_data = malloc(plan.work_size + 1);
    struct ggml_threadpool_params pool = ggml_threadpool_params_default(threads);
    plan.threadpool = ggml_threadpool_new(&pool);
    printf("ready\n");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        w->data = copies + set_bytes * (strtoul(line, NULL, 10) % sets);
        int64_t start_ns = now_ns();
        ggml_graph_compute(graph, &plan);
        printf("%lld\n", (long long)(now_ns() - start_ns));
        fflush(stdout);
        memcpy(output, y->data, ggml_nbytes(y));
    }
    ggml_threadpool_free(plan.threadpool);
    free(plan.work_data);
}

int main(int argc, char **argv) {
    const struct product_type *type = argc == 10 ? find_type(argv[1]) : NULL;
    if (!type) {
        fprintf(stderr, "ggml-product: to be started by tests/bench/peers/run only\n");
        return 64;
    }
    struct shape s = {atol(argv[2]), atol(argv[3]), atol(argv[4]), atol(argv[5]), atol(argv[6])};
    size_t elements = (size_t)(s.groups * s.n * s.k), x_bytes = type->type == GGML_TYPE_F32 ? sizeof(float) : sizeof(ggml_bf16_t);
    char *at = map_file(argv[8]), *output = map_file(argv[9]);
    const int32_t *sizes = (const int32_t *)take(&at, (size_t)s.groups * sizeof *sizes);
    const char *lhs = take(&at, (size_t)(s.rows * s.k) * x_bytes);
    const char *weights = take(&at, type->bits ? elements * type->bits / 8 : ggml_row_size(type->type, (int64_t)elements));

    size_t room = (size_t)(s.rows * (s.k + 2 * s.n)) * sizeof(float) + 2 * TENSOR_ROOM;
    struct ggml_context *context = ggml_init((struct ggml_init_params){room, NULL, false});
    struct ggml_tensor *x = ggml_new_tensor_3d(context, GGML_TYPE_F32, s.k, 1, s.rows);
    struct ggml_tensor *ids = ggml_new_tensor_2d(context, GGML_TYPE_I32, 1, s.rows);
    fill_rows(x, lhs, type->type);
    fill_ids(ids, sizes, s.groups);
    ggml_set_no_alloc(context, true);
    struct ggml_tensor *w = ggml_new_tensor_3d(context, type->type, s.k, s.n, s.groups);
    ggml_set_no_alloc(context, false);
    struct ggml_tensor *y = ggml_mul_mat_id(context, w, x, ids);
    char *coded = type->bits ? malloc(ggml_nbytes(w)) : NULL;
    if (coded) {
        code_weights(type, elements, weights, at, coded);
    }
    char *copies = place_weights(w, y, coded ? coded : weights, (size_t)s.sets);
    free(coded);
    struct ggml_cgraph *graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, y);
    serve(w, y, graph, copies, (size_t)s.sets, atoi(argv[7]), output);
    return 0;
}
