// The interface between the host program and a module of kernels for devices. A module is a shared object, built by nvcc for CUDA
// or as C++ for simulated GPUs, with one symbol: expertd_device_table. The host program does not link CUDA. The host owns errors,
// tables and the order of work; the module owns the kernels.
//
// Work on a device is asynchronous and in order: calls enqueue it on the device's stream, `wait` returns when it is done. Memory
// that a call points to must live until then. Only `open`, `reserve` and `pin` allocate. Use a device from one thread at a time.
// All pointers in the structs of operations are device memory unless a comment says host. C and C++.
#ifndef EXPERTD_KERNELS_DEVICE_H
#define EXPERTD_KERNELS_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"
#include "expertd/kernels/activation.h"
#include "expertd/kernels/quantised_format.h"
#include "expertd/kernels/routing.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EXPERTD_DEVICE_VERSION = 10,
    EXPERTD_DEVICE_MESSAGE_MAX = 320,
    EXPERTD_DEVICE_NAME_MAX = 128,
    EXPERTD_DEVICE_ARITHMETIC_MAX = 24
};

// The host program converts these codes to its own errors (expertd_devices_check).
enum expertd_device_code {
    EXPERTD_DEVICE_OK,
    EXPERTD_DEVICE_MISSING, // no driver, no such device, or a device that this module has no kernels for
    EXPERTD_DEVICE_NOMEM,
    EXPERTD_DEVICE_FAILED, // an operation failed; the device is lost
};
struct expertd_device_error {
    char message[EXPERTD_DEVICE_MESSAGE_MAX];
};

struct expertd_device;
struct expertd_device_links; // transfers between devices; not part of the installed headers

// The kernel of a product: the instruction, and the rows of a group that one thread block computes. Under each variant, a row's
// bits are independent of the other rows. Which variants give equal bits depends on the device: expertd_device_variants.equal.
enum expertd_device_variant {
    EXPERTD_DEVICE_FMA_16, // fp32: fmas, k ascending
    EXPERTD_DEVICE_FMA_64,
    EXPERTD_DEVICE_MMA_16, // 16-bit: mma.sync
    EXPERTD_DEVICE_MMA_32,
    EXPERTD_DEVICE_MMA_64,
    EXPERTD_DEVICE_WGMMA_8, // 16-bit: wgmma with swapped operands: weights are the 64-row operand
    EXPERTD_DEVICE_WGMMA_16,
    EXPERTD_DEVICE_WGMMA_32,
    EXPERTD_DEVICE_WGMMA_64,
    EXPERTD_DEVICE_WGMMA_128, // wgmma: two warpgroups of 64 rows by 256 weight columns; quantised weights: swapped operands
    EXPERTD_DEVICE_VARIANTS,
};

// The variants of one dtype on one device. In sets, bit v stands for variant v.
struct expertd_device_variants {
    uint32_t has;                      // set: the device has kernels for them
    uint32_t equal;                    // set: they are known to give equal bits, so that one layer may use them all
    enum expertd_device_variant alone; // the only variant used where `equal` is empty
    bool quantised;                    // of a layer: its weights are quantised, which changes the costs of tiles
};

struct expertd_device_facts {
    char name[EXPERTD_DEVICE_NAME_MAX];
    char arithmetic[EXPERTD_DEVICE_ARITHMETIC_MAX];     // of bf16 sums, as in a numerics_id: "sm_90"
    char arithmetic_f32[EXPERTD_DEVICE_ARITHMETIC_MAX]; // of f32 sums: "cpu" where they are known to equal the CPU's
    uint64_t memory_bytes, memory_available;
    struct expertd_device_variants bf16, f32; // f16 has the variants of bf16
};

// ---- operations. T tokens, H hidden size, I intermediate width, E local experts, R rows of the batch on this device

// Rows [row, row + rows) of one group: the rows that one thread block computes, for some columns. A list of tiles is made for one
// variant. Consecutive tiles of one group form spans: the tiles of a span process the same weight columns one after another, so
// that they share them in the cache.
struct expertd_device_tile {
    uint32_t group, row, rows;
    uint32_t span, span_tiles; // index of the span's first tile in the list, and its tiles; where a list is truncated, fewer
};
enum { EXPERTD_DEVICE_TILE_ROWS = 64 }; // rows of a tile where no variant applies: quantised weights

// Codes of 4 or 8 bits with scales, in the layout for devices. Sums as in quantised.h: per scale group a partial sum from +0 in the
// device's arithmetic, then an IEEE fma.
struct expertd_device_quantised {
    struct expertd_quantised_format format;
    const void *scales;    // 16-byte aligned; NULL: the matrix is not quantised
    const uint8_t *zeros;  // 16-byte aligned, where the format has zero points
    const float *globals;  // [groups], where scales are per column and the format has a global scale
    const uint32_t *order; // [groups, k] the row element for each k; NULL: in order
};

// One matrix per group: row-major, or quantised.
struct expertd_device_matrix {
    enum expertd_dtype dtype; // F32 or BF16; of quantised weights: the dtype of the rows
    uint32_t groups, n, k;
    const void *data; // [groups, n, k], or codes; 16-byte aligned
    struct expertd_device_quantised quantised;
};

// The rows of a product and their groups.
struct expertd_device_rows {
    enum expertd_dtype dtype;            // F32 or BF16
    const void *data;                    // 16-byte aligned
    size_t stride;                       // bytes, a multiple of 16
    const uint32_t *index;               // [R] the row of `data` for each row; NULL: in order
    enum expertd_device_variant variant; // that the tiles were made for
    const struct expertd_device_tile *tiles;
    uint32_t tile_count;
    uint32_t rows; // R: a tile that extends beyond R is truncated
};

// Converts input rows to the compute dtype: widens each element to fp32, multiplies it by its scale, rounds once.
struct expertd_device_convert_input {
    enum expertd_dtype from; // F32, F16, BF16, F8_E4M3, F8_E5M2
    enum expertd_dtype to;   // F32 or BF16; where from == to, bits are copied
    uint32_t rows, width;
    const void *data;       // [rows, width] dense, 16-byte aligned
    const float *scales;    // [rows, scale_columns], each for 128 elements; NULL: none
    uint32_t scale_columns; // 1: one scale per row; 0: one scale for all rows
    void *out;              // [rows, width]
    size_t stride;          // bytes from row to row of out
};

// logits[r] = row r x weights^T (+ bias), one IEEE fma per k in fp32; then sigmoid where `sigmoid` is set.
struct expertd_device_logits {
    struct expertd_device_rows rows;
    struct expertd_device_matrix weights; // F32, one group
    const float *bias;                    // [n] or NULL
    int sigmoid;
    float *out; // [R, n]
};

// Routing as expertd_routing_row; or, where `chosen` is set, as expertd_routing_row_chosen.
struct expertd_device_choose {
    struct expertd_routing routing; // selection_bias in device memory; expert_scale NULL: such routers run on the host
    const float *logits;            // [T, routing.num_experts]
    uint32_t tokens;                // T
    uint32_t columns;               // of ids and weights, at least top_k; those after top_k are set to -1 and 0
    int chosen;                     // ids are given; not with EXPERTD_SCORE_SPARSEMIXER
    int32_t *ids;                   // [T, columns]
    float *weights;                 // [T, columns]
};

// Gathers the rows of tokens, with weights where the model weights the experts' input:
// out[r] = round(weights[choice[r]] * hidden[token[r]]), or without weights hidden[token[r]].
struct expertd_device_weigh {
    enum expertd_dtype dtype;
    const void *hidden;
    size_t stride;          // bytes from row to row of `hidden` and of `out`
    uint32_t width, rows;   // H, R
    const uint32_t *token;  // [R]
    const uint32_t *choice; // [R] index into weights; not read where weights is NULL
    const float *weights;   // or NULL
    void *out;              // [R, H]
};

// out = round(activation(rows x gate^T + gate_bias, rows x up^T + up_bias)). Gate and up are both unquantised, or have equal
// formats and orders.
struct expertd_device_gate_up {
    struct expertd_device_rows rows;
    struct expertd_device_matrix gate, up; // gate.data NULL where the activation has no gate
    const float *gate_bias;                // [E, I] or NULL
    const float *up_bias;                  // the same
    struct expertd_activation activation;
    void *out;         // [R, I] in the dtype of rows
    size_t out_stride; // bytes, a multiple of 16
};

// out = round((rows x down^T + bias) * row_scale).
struct expertd_device_down {
    struct expertd_device_rows rows;
    struct expertd_device_matrix down;
    const float *bias;      // [E, H] or NULL
    const float *row_scale; // [R] or NULL
    void *out;              // [R, H] in the dtype of rows
    size_t out_stride;      // bytes, a multiple of 16
};

// expertd_combine_row for every token.
struct expertd_device_combine {
    uint32_t width, tokens, choices; // H, T, slots per token K
    enum expertd_dtype dtype;        // of rows, hidden and shared
    size_t stride;                   // bytes from row to row of all three
    const void *rows;                // result rows
    const uint32_t *choice_row;      // [T, K] index into rows; UINT32_MAX: none
    const int32_t *ids;              // [T, K] read where choice_row is UINT32_MAX: negative: empty slot, else an identity expert
    const float *weights;            // [T, K]; NULL: rows are added without weights
    const void *hidden;              // [T, H] an identity expert's result
    float routed_scale;
    const void *shared;          // result rows of the shared experts
    const uint32_t *shared_rows; // [T] index into shared; UINT32_MAX: none
    const float *bias;           // [H] or NULL
    int averaged;
    enum expertd_dtype output_dtype; // F32, BF16 or F16
    void *out;                       // [T, H] dense
};

// out = round(rows x b^T), in bf16, f32, and f16 (mma and wgmma).
struct expertd_device_grouped_gemm {
    struct expertd_device_rows rows;
    struct expertd_device_matrix b; // of the rows' dtype
    void *out;                      // [R, n]
    size_t out_stride;              // bytes, a multiple of 16
};

// One operand of a product. Element (line, k) is number line * line_stride + k * k_stride; for U8, numbers count E2M1 codes, two
// per byte, low nibble first. A line of operand a is a row of the output, a line of b is a column.
struct expertd_device_product_operand {
    const void *data;
    const uint32_t *lines; // line of data for each line (gather); NULL: in order
    uint64_t line_stride, k_stride;
    const void *scales; // of the group
    uint64_t scale_line_stride, scale_k_stride;
};

// out = alpha * (A B) + beta * C, rounded once. Where k is 0, A B is +0 for any alpha. C is read where beta is not 0. With an
// I32 output, alpha and beta are integers in int32's range, and out wraps.
struct expertd_device_product_group {
    struct expertd_device_product_operand a, b;
    uint32_t m, n, k; // m and n not 0
    uint32_t first_tile;
    void *out;           // [m, n]
    uint64_t out_stride; // elements from row to row
    const void *c;       // [m, n] in the dtype of out; may be `out`
    uint64_t c_stride;
    float alpha, beta;
};

struct expertd_device_product_format {
    enum expertd_dtype dtype;       // F32, F16, BF16, I8; with scales F8_E4M3, F8_E5M2, U8 (E2M1)
    enum expertd_dtype scale_dtype; // F32, F8_E8M0; NONE for both operands: no scales
    uint32_t lines_per_scale;
};

// Independent products (device_operations.h). I8 by I8 is summed in int32; bf16 and codes are summed as bf16; all other dtypes take
// one fma per k. With scales: a partial sum per scale group of K, then fma(partial, scale_a * scale_b, sum); see grouped_gemm.h for
// products of scales that are not normal numbers.
struct expertd_device_product {
    const struct expertd_device_product_group *groups; // [num_groups]
    uint32_t num_groups;
    uint32_t tiles; // tiles of 64 x 64 outputs of all groups; those of a group are consecutive, from its first_tile on
    struct expertd_device_product_format a, b;
    uint32_t k_per_scale;         // a multiple of 16, or 0: one scale for all of K
    enum expertd_dtype out_dtype; // F32, BF16, F16; for I8 also I32
};

// D[rows of g] = A[rows of g] x B[g]^T for E4M3 operands and a bf16 result, by wgmma. Per 128 k a partial sum, then
// fma(partial, a_scale * b_scale, sum). No operation uses it: the order of these sums is not part of the numerics contract.
struct expertd_device_fp8_gemm {
    const void *a;               // [rows, k], 16-byte aligned
    const float *a_scales;       // [rows, ceil(k / 128)]
    const void *b;               // [groups, n, k], 16-byte aligned
    const float *b_scales;       // [groups, ceil(n / 128), ceil(k / 128)]
    void *d;                     // [rows, n]; rows after the sum of the sizes are not written
    const int32_t *sizes;        // [groups] not negative, in all at most `rows`; not checked
    uint32_t rows, groups, n, k; // n a multiple of 8, k of 16; at most 512 groups
};

// expertd_make_group_metadata for sizes in device memory.
struct expertd_device_group_metadata {
    const int32_t *sizes;                                        // [groups] not negative, in all at most `rows`; not checked
    uint32_t groups, rows, tile_rows, first_group, local_groups; // INT32_MAX at most
    int visit_empty;
    int32_t *offsets;     // [groups + 1]
    int32_t *ids, *tiles; // [expertd_group_metadata_capacity]; entries from tile_count on are not written
    int32_t *tile_count;  // [1]
};

enum expertd_device_copy_kind { EXPERTD_DEVICE_UPLOAD, EXPERTD_DEVICE_DOWNLOAD, EXPERTD_DEVICE_LOCAL };

// The module's functions. A function that fails returns a code other than EXPERTD_DEVICE_OK and sets *error, which the caller owns.
// Any function that takes a device may return EXPERTD_DEVICE_FAILED, also because of a kernel or copy that was enqueued earlier, or
// EXPERTD_DEVICE_NOMEM where the driver reports that it lacks memory. Operations only enqueue: an error of the kernel itself is
// returned by a later call, usually `wait`.
struct expertd_device_table {
    uint32_t version; // EXPERTD_DEVICE_VERSION
    uint32_t bytes;   // size of this struct; the host checks both before it reads anything else
    const char *kind; // "cuda", "sim"

    // The number of devices. Takes no resources of a device, unlike `open`. Its only error is EXPERTD_DEVICE_MISSING.
    enum expertd_device_code (*count)(uint32_t *out, struct expertd_device_error *error);
    // Nonzero where these kernels were verified on devices of this kind. Takes no resources of a device either.
    int (*proven)(uint32_t number);
    // Opens device `number` and creates its streams. The caller owns *out until `close`; *out is NULL after an error.
    // EXPERTD_DEVICE_MISSING: no such device, a compute capability below 8.0, or one for which the module contains no kernels.
    enum expertd_device_code (*open)(uint32_t number, struct expertd_device **out, struct expertd_device_error *error);
    void (*close)(struct expertd_device *device); // release its memory first; NULL is legal
    // Name, arithmetic, variants and memory. *out is the caller's; it is all zeros after an error.
    enum expertd_device_code (*describe)(struct expertd_device *device, struct expertd_device_facts *out,
                                         struct expertd_device_error *error);

    // Device memory, 256-byte aligned. bytes > 0. The caller owns *out until `release`; *out is NULL after an error.
    // EXPERTD_DEVICE_NOMEM: the device has too little memory.
    enum expertd_device_code (*reserve)(struct expertd_device *device, size_t bytes, void **out,
                                        struct expertd_device_error *error);
    void (*release)(struct expertd_device *device, void *memory); // NULL is legal
    // Pins host memory for copies to and from every device. Page-aligned; borrowed until unpin. EXPERTD_DEVICE_NOMEM: the driver
    // has too little memory for it.
    enum expertd_device_code (*pin)(struct expertd_device *device, void *memory, size_t bytes, struct expertd_device_error *error);
    void (*unpin)(struct expertd_device *device, void *memory);

    // Copies between pinned host memory and the device, or within the device.
    enum expertd_device_code (*copy)(struct expertd_device *device, enum expertd_device_copy_kind way, void *to, const void *from,
                                     size_t bytes, struct expertd_device_error *error);
    // Copies from another device's memory, after all earlier work of that device.
    enum expertd_device_code (*copy_from)(struct expertd_device *device, void *to, struct expertd_device *other, const void *from,
                                          size_t bytes, struct expertd_device_error *error);
    // Waits for all work of the device; the thread sleeps.
    enum expertd_device_code (*wait)(struct expertd_device *device, struct expertd_device_error *error);
    // Copies on separate streams, concurrent with the device's kernels. upload_async starts at once; work enqueued after
    // await_upload waits for it. download_async starts after all work enqueued so far; wait_downloads waits for all downloads
    // enqueued so far.
    enum expertd_device_code (*upload_async)(struct expertd_device *device, void *to, const void *from, size_t bytes,
                                             struct expertd_device_error *error);
    enum expertd_device_code (*await_upload)(struct expertd_device *device, struct expertd_device_error *error);
    enum expertd_device_code (*download_async)(struct expertd_device *device, void *to, const void *from, size_t bytes,
                                               struct expertd_device_error *error);
    enum expertd_device_code (*wait_downloads)(struct expertd_device *device,
                                               struct expertd_device_error *error); // the thread sleeps
    // Polling instead of waiting, for work that may never end. `mark` marks the work enqueued so far; `finished` sets *out to 1
    // if it is done, `finished_downloads` if the downloads that wait_downloads waits for are done; else, and after an error, to 0.
    enum expertd_device_code (*mark)(struct expertd_device *device, struct expertd_device_error *error);
    enum expertd_device_code (*finished)(struct expertd_device *device, int *out, struct expertd_device_error *error);
    enum expertd_device_code (*finished_downloads)(struct expertd_device *device, int *out, struct expertd_device_error *error);

    enum expertd_device_code (*convert_input)(struct expertd_device *device, const struct expertd_device_convert_input *args,
                                              struct expertd_device_error *error);
    enum expertd_device_code (*logits)(struct expertd_device *device, const struct expertd_device_logits *args,
                                       struct expertd_device_error *error);
    enum expertd_device_code (*choose)(struct expertd_device *device, const struct expertd_device_choose *args,
                                       struct expertd_device_error *error);
    enum expertd_device_code (*weigh)(struct expertd_device *device, const struct expertd_device_weigh *args,
                                      struct expertd_device_error *error);
    enum expertd_device_code (*gate_up)(struct expertd_device *device, const struct expertd_device_gate_up *args,
                                        struct expertd_device_error *error);
    enum expertd_device_code (*down)(struct expertd_device *device, const struct expertd_device_down *args,
                                     struct expertd_device_error *error);
    enum expertd_device_code (*combine)(struct expertd_device *device, const struct expertd_device_combine *args,
                                        struct expertd_device_error *error);

    enum expertd_device_code (*grouped_gemm)(struct expertd_device *device, const struct expertd_device_grouped_gemm *args,
                                             struct expertd_device_error *error);
    enum expertd_device_code (*fp8_gemm)(struct expertd_device *device, const struct expertd_device_fp8_gemm *args,
                                         struct expertd_device_error *error); // sm_90a only
    enum expertd_device_code (*product)(struct expertd_device *device, const struct expertd_device_product *args,
                                        struct expertd_device_error *error);
    enum expertd_device_code (*group_metadata)(struct expertd_device *device, const struct expertd_device_group_metadata *args,
                                               struct expertd_device_error *error);

    const struct expertd_device_links *links; // transfers between devices

    // For tests, on simulated devices only; else NULL. Makes call number after + 1 of the CUDA or NCCL function `call` fail.
    // Special names: "launch": the kernel traps; "hang": the kernel does not end; "hangCopy": the next copy does not end. These may
    // be set in addition: "uploadsAtOnce": uploads arrive as early as possible instead of as late as possible; "memoryKiB": the
    // memory of each device; "ncclKiB": the memory that NCCL takes, twice. NULL removes all failures; hanging work then continues.
    void (*plant_failure)(const char *call, unsigned after);
    // For tests, on simulated devices only; else NULL. Counts the calls of a CUDA function so far.
    uint64_t (*calls)(const char *call);
};

#define EXPERTD_DEVICE_TABLE_SYMBOL "expertd_device_table"

#ifdef __cplusplus
}
#endif

#endif
