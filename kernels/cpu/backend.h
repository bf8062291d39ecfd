// One table of inner loops per instruction set, and what each loop is given; kernel_select.h chooses among them.
// Private to kernels/ and its tests.
#ifndef EXPERTD_KERNELS_CPU_BACKEND_H
#define EXPERTD_KERNELS_CPU_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"
#include "expertd/kernels/kernel_select.h"
#include "expertd/kernels/weights.h"
#include "kernels/cpu/unpacked_k_major.h"
#include "kernels/cpu/unpacked_n_major.h"

struct expertd_activation_args;
struct expertd_combine_args;
struct add_scaled_args;
struct epilogue_args;
struct decode_args;
struct pack_args;
struct offsets_args;
struct place_args;

enum {
    KERNEL_CALL_ROWS = 240,                                 // rows of one call at most: what a caller keeps pointers for
    KERNEL_PANELS_MAX = 4,                                  // panels of a group call at most
    KERNEL_SUMS = KERNEL_PANELS_MAX * EXPERTD_KERNEL_PANEL, // floats of a row of a group's sums
    KERNEL_SCRATCH_BYTES = 288 << 10,                       // of a group call: widened panels and rows
    KERNEL_ROWS_CACHED = 768 << 10,       // bytes of rows that a call of slices keeps at most, where scratch_more has room
    KERNEL_SCRATCH_MORE = 496 << 10,      // of scratch_more that kernels know what to do with, but for those of quantised_span:
    KERNEL_DIGITS_CACHED = 1552 << 10,    // for 48 rows of 7168 k NVFP4's a512 is 1.35 times as fast as in blocks of K
    KERNEL_CODED_ROWS_CACHED = 512 << 10, // the same of a call of quantised weights, whose tiles are padded
    KERNEL_CODED_ROWS = 120,              // rows of that call at most
    KERNEL_QUANTISED_ROWS = 8,            // of a group call of quantised weights at most, where rows are kept by other kernels
};

// A panel kernel's work: out[r][c] = the sum over k of x[r][k] * panel[k][c].
struct panel_args {
    const void *const *x;       // [rows] pointers to k elements of the panel's dtype; any alignment of that dtype
    size_t rows;                // 1 to KERNEL_CALL_ROWS; the kernel cuts them into tiles as it likes
    const void *panel;          // packed, 64-byte aligned; the layouts are in weights.h
    size_t k;                   // whole K
    float *out;                 // [rows] rows, out_stride elements apart; `columns` of each are stored, the rest is left alone.
                                // Of int8 they are int32 that wrap as two's complement (exact below 2^31 / 2^14 = 131072 of k)
    size_t out_stride, columns; // 1 <= columns <= EXPERTD_KERNEL_PANEL
};
typedef void panel_kernel(const struct panel_args *args);

// The same of a panel of quantised weights, packed by expertd_pack_quantised.
typedef void quantised_kernel(const struct panel_args *args, const struct expertd_quantised_format *format);

// Memory that is read soon: `runs` of `bytes`, their beginnings `stride` bytes apart; 0 runs: none is known. It is fetched, never
// read.
struct memory_ahead {
    const void *from;
    size_t runs, bytes, stride;
};

// The same rows against several panels, for more rows than one tile: what is made of a row (widening) serves them all, and K is
// blocked so that the panels' block stays in L2 over the tiles. While one block is multiplied the next is prefetched.
struct macrokernel_args {
    const void *const *x;      // [rows] as above
    size_t rows;               // 1 to KERNEL_CALL_ROWS
    const void *const *panels; // [count] packed, 64-byte aligned, of one k and dtype
    size_t count;              // 1 to KERNEL_PANELS_MAX
    size_t k;                  // whole K
    float *sums;   // [rows][KERNEL_SUMS], 64-byte aligned: panel p's 64 columns from p * EXPERTD_KERNEL_PANEL on; padding is summed
                   // too. Of int8 int32
    void *scratch; // KERNEL_SCRATCH_BYTES and scratch_more, 64-byte aligned, the thread's own
    const void *const *next;   // [count] the panels that this thread takes next, of the same k; NULL: none
    bool goes_on;              // sums are added to what is there, the sums over the k before, a multiple of KERNEL_K_UNIT
    bool rows_cached;          // scratch is as the kernel's last call left it, which was for the same rows, k and format
    size_t scratch_more;       // bytes: rows may be kept there
    struct memory_ahead ahead; // into L2 meanwhile, in place of panels; may not be looked at
    const void *const *next_x; // [next_rows] the rows of k elements that the thread multiplies next, where they are others: into L2
    size_t next_rows;          // meanwhile; may not be looked at. 0: none
};
typedef void macrokernel(const struct macrokernel_args *args);

// The same of panels of quantised weights. goes_on is false; `next` may not be looked at, nor rows_cached with more rows than
// element_kernels says.
typedef void quantised_macrokernel(const struct macrokernel_args *args, const struct expertd_quantised_format *format);

// Rows of a call that are kept over the whole of K, where that is dear to make again; 0: it is not.
typedef size_t quantised_span_rows(const struct expertd_quantised_format *format, size_t k);

// What the bits of a backend's bf16 sums are; everything else is the same everywhere.
enum kernel_arithmetic {
    ARITHMETIC_CPU,     // pairs of fmas, as the numerics contract says
    ARITHMETIC_CPU_AMX, // TDPBF16PS: 32 k at a time, even and odd ones apart
    ARITHMETIC_SM_90, // a Hopper GPU's tensor cores (kernels/cpu/common/tensor_core.h): 16 k at once, the last of them padded with
                      // +0
};

// The k of which every block of K but the last is a multiple, for a group kernel's sums of `sum` to go on over the next as if there
// were one: pairs and quads do not straddle two, nor do the 32 k that TDPBF16PS adds to each other first, or
// the 16 of a tensor core.
#define KERNEL_K_UNIT(arithmetic, sum)                                                                                             \
    ((size_t)((sum) != EXPERTD_DTYPE_BF16 || (arithmetic) == ARITHMETIC_CPU ? 4 : (arithmetic) == ARITHMETIC_CPU_AMX ? 32 : 16))

// Those of panels that are packed as slices of one width.
struct slices_kernels {
    macrokernel *group;  // any number of rows; goes_on is false. NULL: there is none
    panel_kernel *panel; // the same without scratch, where a caller has little; NULL where `group` is
    size_t widened;      // bytes that are kept of a row, for each that it has, where rows are widened; 0: they are not
};

// What a group kernel keeps of a call's rows: of each as many bytes as it has so many times, of all of them `bytes` at most; 0:
// none that it pays to give it again.
struct macrokernel_caching {
    size_t bytes, times;
};

// What multiplies rows of one kind of element. Every kernel of a kind gives the same bits; which one is the faster hangs on the
// rows.
struct element_kernels {
    panel_kernel *panel;                                  // never NULL
    macrokernel *group;                                   // NULL: `panel` serves any number of rows
    size_t small_m;                                       // rows up to which `panel` is faster than `group`; 0: never
    struct slices_kernels slices[EXPERTD_PACKED_LAYOUTS]; // by width; none at EXPERTD_PACKED_PANELS, which the three above read
    quantised_kernel *quantised;                          // rows against codes; NULL for int8 alone
    quantised_macrokernel *quantised_macrokernel_of;      // NULL: `quantised` serves
    size_t quantised_cached;                              // rows that it keeps at most; 0: KERNEL_QUANTISED_ROWS
    bool all_scratch;                                     // `group` keeps rows in all the scratch_more there is
    struct macrokernel_caching caches;                    // of rows against panels that are no slices
    quantised_span_rows *quantised_span; // NULL: quantised_cached or as many as KERNEL_CODED_ROWS_CACHED has room for, and it
                                         // fetches the next ones
    n_major_kernel *n_major;     // NULL: plain weights as [k, n] are always packed
    size_t n_major_rows;         // of a group, up to which `across` is faster than packing; 0: any it takes
    k_major_kernel *k_major;     // NULL: plain weights as [n, k] are always packed
    size_t k_major_rows;         // of a group, up to which `along` is faster
    size_t k_major_widened_rows; // the same where weights are not of the sums' dtype: F16 and BF16 by F32
};

// One instruction set's copies of every inner loop: rows against a panel of packed columns, and the loops over one row. Kernels set
// and restore the floating-point mode they need; the others run in IEEE's default.
struct kernel_backend {
    const char *name; // "avx512", "amx", ...: CANDIDATES in select.c
    enum kernel_arithmetic arithmetic;
    struct element_kernels f32, bf16, i8;
    void (*widen)(enum expertd_dtype dtype, const void *src, size_t count, float *dst);  // convert.h
    void (*narrow)(const float *src, size_t count, enum expertd_dtype dtype, void *dst); // convert.h
    void (*from_i32)(float *sums, size_t count, enum expertd_dtype to);       // int32 bits to expertd_f32_from_i32's, in place
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

// Those of rows of F32, BF16 or I8.
const struct element_kernels *backend_kernels(const struct kernel_backend *backend, enum expertd_dtype dtype);

// The chosen backend (kernel_select.h); "auto" is selected at the first call where nobody chose. Never NULL.
const struct kernel_backend *kernel_selected(void);

// The i-th backend compiled into this build, widest first, scalar last, NULL past the end; *usable: this CPU runs it.
const struct kernel_backend *kernel_backend_at(size_t i, bool *usable);

#endif
