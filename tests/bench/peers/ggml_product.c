// llama.cpp's side: MUL_MAT_ID on the file that tests/bench/peers/run has laid out for peer-ours, with the same lines on its input
// and output. Built by --install against the ggml that comes with llama-cpp-python.
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

#include <ggml-cpu.h>
#include <ggml.h>

enum { PAGE = 4096, TENSOR_ROOM = 1 << 20 };

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

// Weights in huge pages, as everybody's.
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
    if (type == GGML_TYPE_BF16) {
        ggml_bf16_to_fp32_row((const ggml_bf16_t *)lhs, to, (int64_t)count);
    } else {
        memcpy(to, lhs, count * sizeof *to);
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

int main(int argc, char **argv) {
    if (argc != 10) {
        fprintf(stderr, "ggml-product: started by tests/bench/peers/run only\n");
        return 64;
    }
    enum ggml_type type = strcmp(argv[1], "f32") == 0 ? GGML_TYPE_F32 : GGML_TYPE_BF16;
    long groups = atol(argv[2]), rows = atol(argv[3]), k = atol(argv[4]), n = atol(argv[5]), sets = atol(argv[6]);
    int threads = atoi(argv[7]);
    size_t element = ggml_type_size(type), set_bytes = (size_t)(groups * n * k) * element;
    char *at = map_file(argv[8]), *output = map_file(argv[9]);
    const int32_t *sizes = (const int32_t *)take(&at, (size_t)groups * sizeof *sizes);
    const char *lhs = take(&at, (size_t)(rows * k) * element), *weights = take(&at, set_bytes);

    size_t room = (size_t)(rows * (k + 2 * n)) * sizeof(float) + TENSOR_ROOM * (size_t)(sets + 1);
    struct ggml_context *context = ggml_init((struct ggml_init_params){room, NULL, false});
    struct ggml_tensor *x = ggml_new_tensor_3d(context, GGML_TYPE_F32, k, 1, rows);
    struct ggml_tensor *ids = ggml_new_tensor_2d(context, GGML_TYPE_I32, 1, rows);
    fill_rows(x, lhs, type);
    fill_ids(ids, sizes, groups);
    // One graph; its weights are pointed at another copy for each repetition.
    char *copies = reserve(set_bytes * (size_t)sets);
    for (long s = 0; s < sets; s++) {
        memcpy(copies + set_bytes * (size_t)s, weights, set_bytes);
    }
    ggml_set_no_alloc(context, true);
    struct ggml_tensor *w = ggml_new_tensor_3d(context, type, k, n, groups);
    ggml_set_no_alloc(context, false);
    w->data = copies;
    struct ggml_tensor *y = ggml_mul_mat_id(context, w, x, ids);
    struct ggml_cgraph *graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, y);
    struct ggml_cplan plan = ggml_graph_plan(graph, threads, NULL);
    plan.work_data = malloc(plan.work_size + 1);
    struct ggml_threadpool_params pool = ggml_threadpool_params_default(threads);
    plan.threadpool = ggml_threadpool_new(&pool);

    printf("ready\n");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        w->data = copies + set_bytes * (strtoul(line, NULL, 10) % (size_t)sets);
        int64_t start_ns = now_ns();
        ggml_graph_compute(graph, &plan);
        printf("%lld\n", (long long)(now_ns() - start_ns));
        fflush(stdout);
        memcpy(output, y->data, (size_t)(rows * n) * sizeof(float));
    }
    ggml_threadpool_free(plan.threadpool);
    return 0;
}
