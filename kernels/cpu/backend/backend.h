// A backend is a table of inner loops for one instruction set. This header declares the table, the argument structs of its
// functions, and the contract of each function. kernel_select.h (public) chooses a backend; backends.c defines the tables.
//
// How a function is found from its name: TARGET_OPERATION_ELEMENT, for example avx512_macrokernel_f32, is compiled for TARGET's
// instruction set, in a file whose name ends in _TARGET.c, in the folder of that architecture (scalar/, avx2/, avx512/, amx/,
// neon/). backends.c lists the file of each OPERATION.
//
// Private to kernels/ and its tests.
#ifndef EXPERTD_KERNELS_CPU_BACKEND_BACKEND_H
#define EXPERTD_KERNELS_CPU_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"
#include "expertd/kernels/kernel_select.h"
#include "expertd/kernels/weights.h"
#include "kernels/cpu/backend/unpacked_k_major.h"
#include "kernels/cpu/backend/unpacked_n_major.h"

struct expertd_activation_args;
struct expertd_combine_args;
struct add_scaled_args;
struct epilogue_args;
struct decode_args;
struct pack_args;
struct offsets_args;
struct place_args;

enum {
    KERNEL_CALL_ROWS = 240,                                 // most rows (m) of one call
    KERNEL_PANELS_MAX = 4,                                  // most panels of a macrokernel call
    KERNEL_SUMS = KERNEL_PANELS_MAX * EXPERTD_KERNEL_PANEL, // stride in floats of a macrokernel's rows of sums
    KERNEL_SCRATCH_BYTES = 288 << 10,                       // scratch of every macrokernel call: widened panels and rows
    // scratch_more, and the bytes of packed rows that a macrokernel caches from call to call:
    KERNEL_ROWS_CACHED = 768 << 10,       // most bytes cached by a macrokernel for slices, scratch included
    KERNEL_SCRATCH_MORE = 496 << 10,      // most bytes of scratch_more that kernels use, except all_scratch and quantised_span
    KERNEL_DIGITS_CACHED = 1552 << 10,    // most bytes cached by quantised_span kernels: with 48 rows of k = 7168 cached, NVFP4's
                                          // a512 is 1.35 times as fast as in blocks of K
    KERNEL_CODED_ROWS_CACHED = 512 << 10, // most bytes cached by other kernels for quantised weights, which pad their tiles
    KERNEL_CODED_ROWS = 120,              // most rows cached by them
    KERNEL_QUANTISED_ROWS = 8,            // most rows of a quantised call with rows_cached, where quantised_cached is 0
};

// Arguments of a microkernel's driver, which multiplies one panel: out[r][c] = sum over k of x[r][k] * panel[k][c].
struct panel_args {
    const void *const *x;       // [rows] pointers to k elements of the panel's dtype, aligned as that dtype
    size_t rows;                // 1 to KERNEL_CALL_ROWS; the kernel cuts them into tiles
    const void *panel;          // packed, 64-byte aligned; the layouts are in weights.h
    size_t k;                   // the whole of K
    float *out;                 // [rows], out_stride elements apart; only `columns` elements of each row are written. For int8 they
                                // are int32 that wrap as two's complement (exact for k below 2^31 / 2^14 = 131072)
    size_t out_stride, columns; // 1 <= columns <= EXPERTD_KERNEL_PANEL
};
typedef void panel_kernel(const struct panel_args *args);

// The same for a panel of quantised weights, packed by expertd_pack_quantised.
typedef void quantised_kernel(const struct panel_args *args, const struct expertd_quantised_format *format);

// Memory to prefetch, never to read: `runs` pieces of `bytes` each, whose first bytes are `stride` apart. 0 runs: nothing.
struct prefetch_range {
    const void *from;
    size_t runs, bytes, stride;
};

// Arguments of a macrokernel, which multiplies the same rows by several panels, for more rows than one tile. A row is converted
// (widened, interleaved) once for all panels. K is cut into blocks, so that the panels' block stays in L2 while all tiles of rows
// pass over it; the next block is prefetched meanwhile.
struct macrokernel_args {
    const void *const *x;      // [rows] as in panel_args
    size_t rows;               // 1 to KERNEL_CALL_ROWS
    const void *const *panels; // [count] packed, 64-byte aligned, all of the same k and dtype
    size_t count;              // 1 to KERNEL_PANELS_MAX
    size_t k;                  // the whole of K, or a part of it (accumulate)
    float *sums;   // [rows][KERNEL_SUMS], 64-byte aligned: panel p's 64 columns begin at p * EXPERTD_KERNEL_PANEL; padding columns
                   // are written too. int32 for int8
    void *scratch; // KERNEL_SCRATCH_BYTES + scratch_more bytes, 64-byte aligned, owned by the calling thread
    const void *const *next;     // [count] panels of this thread's next call, of the same k, to prefetch; NULL: unknown
    bool accumulate;             // add to `sums`, which hold the sums over the preceding k, a multiple of KERNEL_K_UNIT
    bool rows_cached;            // scratch is as this kernel's last call left it, and that call had the same rows, k and format
    size_t scratch_more;         // bytes behind the first KERNEL_SCRATCH_BYTES, in which the kernel may cache rows
    struct prefetch_range ahead; // to prefetch into L2 instead of `next`; a kernel may ignore it
    const void *const *next_x;   // [next_rows] rows of k elements of this thread's next call, where they differ from x, to prefetch
    size_t next_rows;            // into L2; a kernel may ignore them. 0: unknown
};
typedef void macrokernel(const struct macrokernel_args *args);

// The same for panels of quantised weights. accumulate is false. A kernel may ignore `next`. It may ignore rows_cached if a call
// has more rows than quantised_cached (struct element_kernels).
typedef void quantised_macrokernel(const struct macrokernel_args *args, const struct expertd_quantised_format *format);

// How many rows of a call the kernel caches over the whole of K, for formats whose rows are expensive to convert; 0: none.
typedef size_t quantised_span_rows(const struct expertd_quantised_format *format, size_t k);

// The order and rounding of a backend's bf16 sums. All other results have the same bits in every backend.
enum kernel_arithmetic {
    ARITHMETIC_CPU,     // pairs of fmas, as docs/numerics.md says
    ARITHMETIC_CPU_AMX, // TDPBF16PS: steps of 32 k, even and odd k summed separately
    ARITHMETIC_SM_90,   // a Hopper GPU's tensor cores (common/tensor_core.h): steps of 16 k, the last one padded with +0
};

// A block of K must be a multiple of this many k, except the last one, so that a macrokernel with accumulate gives the bits of one
// block: no pair, quad, TDPBF16PS step (32 k) or tensor-core step (16 k) may straddle two blocks. `sum`: dtype of the operands.
#define KERNEL_K_UNIT(arithmetic, sum)                                                                                             \
    ((size_t)((sum) != EXPERTD_DTYPE_BF16 || (arithmetic) == ARITHMETIC_CPU ? 4 : (arithmetic) == ARITHMETIC_CPU_AMX ? 32 : 16))

// Kernels for panels packed as slices (micropanels) of one width.
struct slices_kernels {
    macrokernel *macrokernel; // any number of rows; accumulate is false. NULL: no kernel for this width
    panel_kernel *panel;      // the same for one panel without scratch; NULL where `macrokernel` is
    size_t widened;           // where the kernel widens rows: bytes cached per byte of a row; 0: rows are not widened
};

// The rows that a macrokernel caches: they take `times` bytes per byte of a row, and at most `bytes` in all; 0: it caches none.
struct macrokernel_caching {
    size_t bytes, times;
};

// The kernels of one element type. All of them give the same bits; the number of rows decides which one is faster.
struct element_kernels {
    panel_kernel *panel;                                  // never NULL
    macrokernel *macrokernel;                             // NULL: `panel` takes any number of rows
    size_t small_m;                                       // up to this m `panel` is faster than `macrokernel`; 0: never
    struct slices_kernels slices[EXPERTD_PACKED_LAYOUTS]; // by layout; empty for EXPERTD_PACKED_PANELS, which `panel` reads
    quantised_kernel *quantised;                          // for quantised weights; NULL for int8 only
    quantised_macrokernel *quantised_large_m;             // NULL: `quantised` takes any number of rows
    size_t quantised_cached;                              // most rows that it caches; 0: KERNEL_QUANTISED_ROWS
    bool all_scratch;                                     // `macrokernel` caches rows in the whole of scratch_more
    struct macrokernel_caching caches;                    // of `macrokernel`
    quantised_span_rows *quantised_span; // NULL: the kernel caches at most quantised_cached rows and KERNEL_CODED_ROWS_CACHED
                                         // bytes, and prefetches next_x if quantised_cached is not 0
    n_major_kernel *n_major;             // NULL: unpacked weights [k, n] are always packed
    size_t n_major_rows;                 // up to this m of a group, n_major is faster than packing; 0: any m that it takes
    k_major_kernel *k_major;             // NULL: unpacked weights [n, k] are always packed
    size_t k_major_rows;                 // up to this m of a group, k_major is faster than packing
    size_t k_major_widened_rows;         // the same for F16 and BF16 weights that are widened to F32
};

// All inner loops of one instruction set: the matrix kernels and the loops over one row. Kernels set and restore the floating-point
// mode that they need; the other functions must be called in IEEE's default mode.
struct kernel_backend {
    const char *name; // "avx512", "amx", ...: CANDIDATES in select.c
    enum kernel_arithmetic arithmetic;
    struct element_kernels f32, bf16, i8;
    void (*widen)(enum expertd_dtype dtype, const void *src, size_t count, float *dst);  // convert.h
    void (*narrow)(const float *src, size_t count, enum expertd_dtype dtype, void *dst); // convert.h
    void (*from_i32)(float *sums, size_t count, enum expertd_dtype to);       // int32 to fp32 (expertd_f32_from_i32), in place
    void (*activation)(const struct expertd_activation_args *args);           // expertd_activation_row
    void (*combine)(const struct expertd_combine_args *args);                 // expertd_combine_row
    void (*exp_minus)(const float *x, float shift, size_t count, float *out); // out[i] = exp(x[i] - shift); in place is legal
    void (*sigmoid)(const float *x, size_t count, float *out);                // in place is legal
    void (*sqrt_softplus)(const float *x, size_t count, float *out);          // in place is legal
    void (*softcap)(const float *x, float cap, size_t count, float *out);     // out[i] = cap tanh(x[i] / cap)
    void (*add_scaled)(const struct add_scaled_args *args);                   // epilogue.h
    void (*epilogue)(const struct epilogue_args *args);                       // epilogue.h
    void (*decode)(const struct decode_args *args);                           // pack.h
    void (*pack_k_major)(const struct pack_args *args);                       // pack.h
    void (*pack_n_major)(const struct pack_args *args);                       // pack.h
    void (*quad_offsets)(const struct offsets_args *args);                    // pack.h
    void (*place_codes)(const struct place_args *args);                       // pack.h
};

// The kernels for rows of F32, BF16 or I8.
const struct element_kernels *backend_kernels(const struct kernel_backend *backend, enum expertd_dtype dtype);

// The selected backend (kernel_select.h). If none has been selected, the first call selects "auto". Never NULL. Any thread.
const struct kernel_backend *kernel_selected(void);

// The i-th backend compiled into this build, widest first, scalar last; NULL past the end. *usable: whether this CPU can run it.
const struct kernel_backend *kernel_backend_at(size_t i, bool *usable);

#endif
