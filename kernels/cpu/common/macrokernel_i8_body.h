// The int8 macrokernel for large m: rows by several panels, in blocks of K. The including file includes quad_pass.h before this
// body, and names the result by PANEL_TARGET(name). Sums start at 0; kernels whose sums start at offsets do not use this body
// (macrokernel_i8_avx512vnni.c).
enum {
    QUAD_BLOCK = 512,         // quads of a block: four panels' blocks take 512 KiB of L2, a tile's rows 12 KiB of L1 (widened: 24)
    QUAD_SMALL_M_BLOCK = 128, // quads of a block up to QUAD_SMALL_M_ROWS: sums and prefetched lines stay closer (12 rows 1.2, 16
                              // rows 1.03 times as fast)
    QUAD_SMALL_M_ROWS = 24,
    QUAD_NEAR = 4096, // bytes ahead that lines are prefetched from L2 into L1
    QUAD_RUN = 8,     // quads of the inner loop between two prefetches of the next block
};
_Static_assert(!STARTS_AT_OFFSETS, "sums begin at 0");

typedef uint32_t quad_block_row[QUAD_BLOCK * QUAD_WORDS + 16] __attribute__((aligned(64))); // stride: not a power of two

// Prefetches the pass's columns of a quad from L2 into L1.
PANEL_INLINE void quad_prefetch_near(const struct quad_pass *p, size_t q) {
    PANEL_UNROLL for (size_t line = 0; line < PANEL_PASS * PACKED_I8_K; line += 64) {
        prefetch_into((const void *)((uintptr_t)&p->panel[q][p->column] + line + QUAD_NEAR), false);
    }
}

PANEL_INLINE void quad_pass_large_m(const struct quad_pass *p, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    struct macrokernel_prefetch prefetch = *p->prefetch;
    quad_load(sums, rows, p);
    for (size_t begin = 0; begin < p->depth; begin += QUAD_RUN) {
        size_t end = p->depth - begin < QUAD_RUN ? p->depth : begin + QUAD_RUN;
        macro_prefetch(&prefetch);
        for (size_t q = begin; q < end; q++) {
            if (prefetch.again) {
                quad_prefetch_near(p, q);
            }
            quad_step(sums, rows, p, q);
        }
    }
    quad_store(sums, rows, p);
    *p->prefetch = prefetch;
}

QUAD_TILE_FUNCTION(quad_tile_large_m, quad_pass_large_m)

// The quads of panel `panel` to prefetch during quads [first, first + depth): the next block, or the next call's panel. NULL:
// unknown.
static const packed_quads *macro_next_quads(const struct macrokernel_args *args, size_t panel, size_t first, size_t depth) {
    if ((first + depth) * PACKED_I8_K < args->k) {
        return ((const struct packed_i8 *)args->panels[panel])->quads + first + depth;
    }
    return args->next ? ((const struct packed_i8 *)args->next[panel])->quads : NULL;
}

// Prefetches the rows of the tile that begins at `row`, from quad `first` on. Each of the call's panels prefetches a share of them.
static void macro_prefetch_quads(const struct macrokernel_args *args, size_t row, size_t panel, size_t first) {
    size_t end = row + PANEL_TILE < args->rows ? row + PANEL_TILE : args->rows;
    size_t bytes =
        args->k - first * PACKED_I8_K < QUAD_BLOCK * PACKED_I8_K ? args->k - first * PACKED_I8_K : QUAD_BLOCK * PACKED_I8_K;
    for (size_t r = row + panel; r < end; r += args->count) {
        const char *x = (const char *)args->x[r] + first * PACKED_I8_K;
        for (size_t i = 0; i < bytes; i += 64) {
            __builtin_prefetch(x + i);
        }
    }
}

// Multiplies quads [first, first + depth) of K, tile by tile, each tile by all panels. call_prefetch: memory to prefetch instead of
// the next block, or NULL.
static void macro_block_i8(const struct macrokernel_args *args, size_t first, size_t depth,
                           struct macrokernel_prefetch *call_prefetch) {
    size_t tiles = (args->rows + PANEL_TILE - 1) / PANEL_TILE;
    size_t runs = tiles * (EXPERTD_KERNEL_PANEL / PANEL_PASS) * ((depth + QUAD_RUN - 1) / QUAD_RUN);
    quad_block_row x[PANEL_TILE];
    struct macrokernel_prefetch prefetch[KERNEL_PANELS_MAX];
    for (size_t p = 0; p < args->count; p++) {
        prefetch[p] = macrokernel_prefetch_over(macro_next_quads(args, p, first, depth), depth * QUAD_BYTES, runs);
        prefetch[p].far = args->rows <= QUAD_SMALL_M_ROWS && prefetch_as_zen4();
        prefetch[p].again = prefetch[p].far ? PREFETCH_AGAIN : 0;
    }
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        struct quad_pass pass = {.depth = depth, .sums_stride = KERNEL_SUMS};
        rows = panel_tile_rows(args->rows, row);
        for (size_t r = 0; r < rows; r++) {
            prepare_quads(args->x[row + r], args->k, first, depth, x[r]);
            pass.x[r] = x[r];
        }
        for (size_t p = 0; p < args->count; p++) {
            macro_prefetch_quads(args, row + rows, p, first);
            pass.panel = ((const struct packed_i8 *)args->panels[p])->quads + first;
            pass.sums = (int32_t *)args->sums + row * KERNEL_SUMS + p * EXPERTD_KERNEL_PANEL;
            pass.prefetch = call_prefetch ? call_prefetch : &prefetch[p];
            quad_tile_large_m(&pass, rows);
        }
    }
}

// args->ahead, to be prefetched in even shares by all blocks of the call instead of panels; .step is 0 if there is none.
static struct macrokernel_prefetch macro_call_prefetch_i8(const struct macrokernel_args *args, size_t quads) {
    size_t tiles = (args->rows + PANEL_TILE - 1) / PANEL_TILE;
    size_t runs = args->count * tiles * (EXPERTD_KERNEL_PANEL / PANEL_PASS) * ((quads + QUAD_RUN - 1) / QUAD_RUN);
    return args->ahead.runs == 0 ? (struct macrokernel_prefetch){0} : macrokernel_prefetch_of(&args->ahead, runs, false);
}

void PANEL_TARGET(macrokernel_i8)(const struct macrokernel_args *args) {
    size_t quads = (args->k + PACKED_I8_K - 1) / PACKED_I8_K;
    struct macrokernel_prefetch call_prefetch = macro_call_prefetch_i8(args, quads);
    clear_sums(args);
    size_t block = args->rows <= QUAD_SMALL_M_ROWS ? QUAD_SMALL_M_BLOCK : QUAD_BLOCK;
    for (size_t q = 0; q < quads; q += block) {
        macro_block_i8(args, q, quads - q < block ? quads - q : block, call_prefetch.step ? &call_prefetch : NULL);
    }
}
