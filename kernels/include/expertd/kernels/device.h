// Devices that compute: what the host program and a module of kernels for GPUs agree on. A module is a shared object, built by nvcc
// for CUDA or as C++ for simulated GPUs, with one symbol: expertd_device_table. The host program links no CUDA; it owns errors,
// tables and the order of work, the module owns the kernels.
//
// Work on a device is asynchronous and in order: calls put it into the device's stream, `wait` sees it done. What a call points
// to must live until then. Nothing but `open`, `reserve` and `pin` takes memory. A device is used by one thread at a time. All
// pointers in the structs of operations are device memory unless they say host. C and C++.
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

// Errors are data: the host program makes its own of them.
enum expertd_device_code {
    EXPERTD_DEVICE_OK,
    EXPERTD_DEVICE_MISSING, // no driver, no such device, or one that this module has no kernels for
    EXPERTD_DEVICE_NOMEM,
    EXPERTD_DEVICE_FAILED, // an operation failed; the device is lost
};
struct expertd_device_error {
    char message[EXPERTD_DEVICE_MESSAGE_MAX];
};

struct expertd_device;
struct expertd_device_links; // device_links.h

// How a product is made: by which instruction, and how many rows of a group a block of threads takes at once. Each gives a row the
// same bits whatever stands beside it; whether two of them give the same ones is the device's to say.
enum expertd_device_variant {
    EXPERTD_DEVICE_FMA_16, // fp32: fmas, k ascending
    EXPERTD_DEVICE_FMA_64,
    EXPERTD_DEVICE_MMA_16, // 16-bit: mma.sync
    EXPERTD_DEVICE_MMA_32,
    EXPERTD_DEVICE_MMA_64,
    EXPERTD_DEVICE_WGMMA_8, // 16-bit: wgmma with its operands swapped: the weights are its side of 64 rows
    EXPERTD_DEVICE_WGMMA_16,
    EXPERTD_DEVICE_WGMMA_32,
    EXPERTD_DEVICE_WGMMA_64,
    EXPERTD_DEVICE_WGMMA_128, // wgmma with 64 rows of two warpgroups against 256 of the weights; of quantised ones, swapped as well
    EXPERTD_DEVICE_VARIANTS,
};

// Of one dtype on one device. Sets: bit v is variant v's.
struct expertd_device_variants {
    uint32_t has;                      // it has kernels for
    uint32_t equal;                    // are known to give equal bits there, so that they may meet in a layer
    enum expertd_device_variant alone; // computes everything where `equal` is empty
    bool quantised;                    // of a layer's: its weights are, and other tiles cost least
};

struct expertd_device_facts {
    char name[EXPERTD_DEVICE_NAME_MAX];
    char arithmetic[EXPERTD_DEVICE_ARITHMETIC_MAX];     // of bf16 sums, as in a numerics_id: "sm_90"
    char arithmetic_f32[EXPERTD_DEVICE_ARITHMETIC_MAX]; // of f32 sums: "cpu" where they are known to be the CPU's
    uint64_t memory_bytes, memory_available;
    struct expertd_device_variants bf16, f32; // f16's are bf16's
};

// ---- operations. T tokens, H hidden, I intermediate width, E experts held here, R rows of the batch on this device

// Rows [row, row + rows) of one group: what a block of threads computes at once, against some columns. A list of tiles is cut for
// one variant (device_plan.h). Tiles of one group that follow each other form spans: a span's tiles meet a column of the weights
// one after the other, so that they share it in the cache.
struct expertd_device_tile {
    uint32_t group, row, rows;
    uint32_t span, span_tiles; // the list's index of the span's first tile, and how many there are; a list cut short cuts the last
};
enum { EXPERTD_DEVICE_TILE_ROWS = 64 }; // where there is no choice: quantised weights

// Codes of 4 or 8 bits with scales, as device_codes.h lays them out. Sums as quantised.h's: per scale a partial sum from +0 in the
// device's arithmetic, closed by an IEEE fma.
struct expertd_device_quantised {
    struct expertd_quantised_format format;
    const void *scales;    // 16-byte aligned; NULL: the matrix is plain
    const uint8_t *zeros;  // 16-byte aligned, where the format has zero points
    const float *globals;  // [groups], where the scales are columns' and the format has a global one
    const uint32_t *order; // [groups, k] the element of a row that is the k-th here; NULL: in order
};

// One matrix per group, row-major, or quantised.
struct expertd_device_matrix {
    enum expertd_dtype dtype; // F32 or BF16; of quantised ones that of the rows they meet
    uint32_t groups, n, k;
    const void *data; // [groups, n, k], or codes; 16-byte aligned
    struct expertd_device_quantised quantised;
};

// Rows that are multiplied, and how they are grouped.
struct expertd_device_rows {
    enum expertd_dtype dtype;            // F32 or BF16
    const void *data;                    // 16-byte aligned
    size_t stride;                       // bytes, a multiple of 16
    const uint32_t *index;               // [R] the row of `data` for each row; NULL: in order
    enum expertd_device_variant variant; // that the tiles are cut for
    const struct expertd_device_tile *tiles;
    uint32_t tile_count;
    uint32_t rows; // R: a tile that goes past it is cut
};

// Rows as callers send them to rows in D: each element widened to fp32, times its scale where there are any, rounded once.
struct expertd_device_convert_input {
    enum expertd_dtype from, to; // F32, F16, BF16, F8_E4M3, F8_E5M2; F32 or BF16. Of one dtype: bits are moved
    uint32_t rows, width;
    const void *data;       // [rows, width] dense, 16-byte aligned
    const float *scales;    // [rows, scale_columns], each of 128 elements; or, of no columns, one for all. NULL: none
    uint32_t scale_columns; // 1: one for a whole row
    void *out;              // [rows, width]
    size_t stride;          // bytes, of out
};

// logits[r] = row r x weights^T (+ bias), one IEEE fma per k in fp32; then sigmoid where that is asked for.
struct expertd_device_logits {
    struct expertd_device_rows rows;
    struct expertd_device_matrix weights; // F32, one group
    const float *bias;                    // [n] or NULL
    int sigmoid;
    float *out; // [R, n]
};

// Logits to choices, as expertd_routing_row does; or only to the weights of choices that were made already, as
// expertd_routing_row_chosen does.
struct expertd_device_choose {
    struct expertd_routing routing; // selection_bias: device; no expert_scale: routers that have one run on the host
    const float *logits;            // [T, routing.num_experts]
    uint32_t tokens;
    uint32_t columns; // of ids and weights: at least top_k; the rest is set to -1 and 0
    int chosen;       // the first top_k ids of each row are given; not with EXPERTD_SCORE_SPARSEMIXER
    int32_t *ids;     // [T, columns]
    float *weights;   // [T, columns]
};

// out[r] = round_D(weights[choice[r]] * row of token[r]), or that row itself.
struct expertd_device_weigh {
    enum expertd_dtype dtype;
    const void *hidden;
    size_t stride;          // bytes, of `hidden` and of `out`
    uint32_t width, rows;   // H, R
    const uint32_t *token;  // [R]
    const uint32_t *choice; // [R] into weights
    const float *weights;   // NULL: rows are gathered as they are, `choice` is not read
    void *out;              // [R, H]
};

// out = round_D(activation(rows x gate^T + gate_bias, rows x up^T + up_bias)). Gate and up are both plain, or both quantised in one
// format with one order.
struct expertd_device_gate_up {
    struct expertd_device_rows rows;
    struct expertd_device_matrix gate, up; // gate.data NULL where not gated
    const float *gate_bias;                // [E, I] or NULL
    const float *up_bias;                  // the same
    struct expertd_activation activation;
    void *out;         // [R, I] in the dtype of rows
    size_t out_stride; // bytes, a multiple of 16
};

// out = round_D((rows x down^T + bias) * row_scale).
struct expertd_device_down {
    struct expertd_device_rows rows;
    struct expertd_device_matrix down;
    const float *bias;      // [E, H] or NULL
    const float *row_scale; // [R] or NULL
    void *out;              // [R, H] in the dtype of rows
    size_t out_stride;      // bytes, a multiple of 16
};

// As expertd_combine_row, a row of each token.
struct expertd_device_combine {
    uint32_t width, tokens, choices; // H, T, K
    enum expertd_dtype dtype;        // of rows, hidden and shared
    size_t stride;                   // bytes, of all three
    const void *rows;                // result rows, and
    const uint32_t *choice_row;      // [T, K] which is each choice's; UINT32_MAX: none
    const int32_t *ids;   // [T, K] where there is none: an identity expert, whose row is the token's own, unless negative
    const float *weights; // [T, K]; NULL: rows are added unweighted
    const void *hidden;   // [T, H]
    float routed_scale;
    const void *shared;          // rows of the shared experts, and
    const uint32_t *shared_rows; // [T] which is each token's; UINT32_MAX: none
    const float *bias;           // [H] or NULL
    int averaged;
    enum expertd_dtype output_dtype; // F32, BF16 or F16
    void *out;                       // [T, H] dense
};

// out = round_D(rows x b^T) and nothing else: the product of `down` alone, also in f16 (mma and wgmma).
struct expertd_device_grouped_gemm {
    struct expertd_device_rows rows;
    struct expertd_device_matrix b; // of the rows' dtype
    void *out;                      // [R, n]
    size_t out_stride;              // bytes, a multiple of 16
};

// One operand of a product: element (line, k) is number line * line_stride + k * k_stride; of U8 these count E2M1 codes, two a
// byte, the low one first. A line of the first operand is a row of the output, of the second a column.
struct expertd_device_product_operand {
    const void *data;
    const uint32_t *lines; // which line of data stands for each; NULL: in order
    uint64_t line_stride, k_stride;
    const void *scales; // of the group
    uint64_t scale_line_stride, scale_k_stride;
};

// out = alpha * (A B) + beta * C, one rounding; over no k alpha counts for nothing; C is read where beta is not 0. With an out of
// I32 both are whole numbers of int32's range, and out wraps.
struct expertd_device_product_group {
    struct expertd_device_product_operand a, b;
    uint32_t m, n, k; // m and n not 0
    uint32_t first_tile;
    void *out; // [m, n] out_stride apart
    uint64_t out_stride;
    const void *c; // the same in the dtype of out; may be `out`
    uint64_t c_stride;
    float alpha, beta;
};

struct expertd_device_product_format {
    enum expertd_dtype dtype;       // F32, F16, BF16, I8; F8_E4M3, F8_E5M2, U8 (E2M1) where scaled
    enum expertd_dtype scale_dtype; // F32, F8_E8M0; NONE: no scales, of neither operand
    uint32_t lines_per_scale;
};

// Independent products, as device_operations.h makes them: two operands of I8 are summed in int32, of bf16 and codes in bf16, all
// others by one fma per k; of scaled ones a partial sum per scale along K, then fma(partial, scale_a * scale_b, sum), with
// epilogue.h's two steps where that product is no normal number.
struct expertd_device_product {
    const struct expertd_device_product_group *groups; // [num_groups]
    uint32_t num_groups, tiles;                        // of 64 x 64 outputs: a group's begin at its first_tile, one after the other
    struct expertd_device_product_format a, b;
    uint32_t k_per_scale;         // a multiple of 16, or 0: one scale over the whole of K
    enum expertd_dtype out_dtype; // F32, BF16, F16; of integers I32 too
};

// D[rows of g] = A[rows of g] x B[g]^T in bf16 of two operands of E4M3, by wgmma: per 128 k a partial sum, then
// fma(partial, a's scale * b's scale, sum), as of device_product. No operation takes it, for its sums have to be seen on a GPU
// first; tests/gpu/gpu_fp8.c has the bound.
struct expertd_device_fp8_gemm {
    const void *a;               // [rows, k], 16-byte aligned
    const float *a_scales;       // [rows, ceil(k / 128)]
    const void *b;               // [groups, n, k], 16-byte aligned
    const float *b_scales;       // [groups, ceil(n / 128), ceil(k / 128)]
    void *d;                     // [rows, n]; rows past the sizes' sum are left alone
    const int32_t *sizes;        // [groups] none negative, together at most `rows`: they are believed
    uint32_t rows, groups, n, k; // n a multiple of 8, k of 16; at most 512 groups
};

// expertd_make_group_metadata on sizes that lie on the device.
struct expertd_device_group_metadata {
    const int32_t *sizes; // [groups] none negative, together at most `rows`: they are believed
    uint32_t groups, rows, tile_rows, first_group, local_groups; // INT32_MAX at most
    int visit_empty;
    int32_t *offsets;     // [groups + 1]
    int32_t *ids, *tiles; // [expertd_group_metadata_capacity]: those past the last tile are left alone
    int32_t *tile_count;  // [1]
};

enum expertd_device_way { EXPERTD_DEVICE_UPLOAD, EXPERTD_DEVICE_DOWNLOAD, EXPERTD_DEVICE_LOCAL };

// A call that fails fills in *error.
struct expertd_device_table {
    uint32_t version; // EXPERTD_DEVICE_VERSION, and
    uint32_t bytes;   // sizeof this: both are checked before anything else is read
    const char *kind; // "cuda", "sim"

    enum expertd_device_code (*count)(uint32_t *out,
                                      struct expertd_device_error *error); // takes nothing of any of them, as `open` does
    int (*proven)(uint32_t number); // answers of these kernels were seen to be right on its like (tests/gpu/results); as count
    enum expertd_device_code (*open)(uint32_t number, struct expertd_device **out, struct expertd_device_error *error);
    void (*close)(struct expertd_device *device); // after its memory was released; NULL is legal
    enum expertd_device_code (*describe)(struct expertd_device *device, struct expertd_device_facts *out,
                                         struct expertd_device_error *error);

    // Device memory, 256-byte aligned. bytes > 0.
    enum expertd_device_code (*reserve)(struct expertd_device *device, size_t bytes, void **out,
                                        struct expertd_device_error *error);
    void (*release)(struct expertd_device *device, void *memory); // NULL is legal
    // Host memory that copies may read and write, for every device: page-aligned, borrowed until it is unpinned.
    enum expertd_device_code (*pin)(struct expertd_device *device, void *memory, size_t bytes, struct expertd_device_error *error);
    void (*unpin)(struct expertd_device *device, void *memory);

    // Between pinned host memory and the device, or within it.
    enum expertd_device_code (*copy)(struct expertd_device *device, enum expertd_device_way way, void *to, const void *from,
                                     size_t bytes, struct expertd_device_error *error);
    // From another device's memory, once what that one was given before is done.
    enum expertd_device_code (*copy_from)(struct expertd_device *device, void *to, struct expertd_device *other, const void *from,
                                          size_t bytes, struct expertd_device_error *error);
    enum expertd_device_code (*wait)(struct expertd_device *device, struct expertd_device_error *error); // the thread sleeps
    // Copies on streams of their own, beside what the device computes: an upload that begins at once, which the device's stream
    // waits for from await_ahead on; a download once what the stream was given before is done, waited for by wait_behind, as all
    // before it.
    enum expertd_device_code (*upload_ahead)(struct expertd_device *device, void *to, const void *from, size_t bytes,
                                             struct expertd_device_error *error);
    enum expertd_device_code (*await_ahead)(struct expertd_device *device, struct expertd_device_error *error);
    enum expertd_device_code (*download_behind)(struct expertd_device *device, void *to, const void *from, size_t bytes,
                                                struct expertd_device_error *error);
    enum expertd_device_code (*wait_behind)(struct expertd_device *device, struct expertd_device_error *error); // the thread sleeps
    // The same without sleeping, for what may never end: marks what the stream was given so far, and asks whether that is done, or
    // what wait_behind waits for.
    enum expertd_device_code (*mark)(struct expertd_device *device, struct expertd_device_error *error);
    enum expertd_device_code (*finished)(struct expertd_device *device, int *out, struct expertd_device_error *error);
    enum expertd_device_code (*finished_behind)(struct expertd_device *device, int *out, struct expertd_device_error *error);

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
                                         struct expertd_device_error *error); // sm_90a's
    enum expertd_device_code (*product)(struct expertd_device *device, const struct expertd_device_product *args,
                                        struct expertd_device_error *error);
    enum expertd_device_code (*group_metadata)(struct expertd_device *device, const struct expertd_device_group_metadata *args,
                                               struct expertd_device_error *error);

    const struct expertd_device_links *links; // between devices

    // Simulated devices only, else NULL: the (after + 1)-th of CUDA's or NCCL's calls of that name fails, for tests; "launch": the
    // kernel that is run then traps, "hang": it does not end, "hangCopy": the next copy does not. Beside one of them,
    // "uploadsAtOnce": copies to the device land as early as they can, not as late; "memoryKiB" and "ncclKiB": what each device
    // has, and what NCCL takes of it, twice. NULL: none any more, and what hung goes on.
    void (*plant_failure)(const char *call, unsigned after);
    // The same: how often CUDA's call of that name was made.
    uint64_t (*calls)(const char *call);
};

#define EXPERTD_DEVICE_TABLE_SYMBOL "expertd_device_table"

#ifdef __cplusplus
}
#endif

#endif
