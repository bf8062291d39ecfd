// Many rows of int8 against several panels at once, in blocks of K: over what quad_pass.h defines, which the including file
// includes before. Sums begin at 0: kernels whose sums begin at offsets have another (macrokernel_i8_avx512vnni.c).
enum {
    QUAD_BLOCK = 512,         // quads, many: four panels' blocks are 512 KiB of L2, a tile's rows 12 KiB (widened: 24) of L1
    QUAD_SMALL_M_BLOCK = 128, // quads, few: sums and fetches stay closer (12 rows 1.2, 16 1.03 times as fast)
    QUAD_SMALL_M_ROWS = 24,   // few
    QUAD_NEAR = 4096,         // bytes ahead that what was fetched into L2 goes into L1
    QUAD_RUN = 8,             // of the inner loop, between which the next block is prefetched
};
_Static_assert(!STARTS_AT_OFFSETS, "sums begin at 0");

typedef uint32_t quad_block_row[QUAD_BLOCK * QUAD_WORDS + 16] __attribute__((aligned(64))); // not a power of two apart

// A quad's lines, from L2.
PANEL_INLINE void quad_prefetch_near(const struct quad_pass *p, size_t q) {
    PANEL_UNROLL for (size_t line = 0; line < PANEL_PASS * PACKED_I8_K; line += 64) {
        prefetch_into((const void *)((uintptr_t)&p->panel[q][p->column] + line + QUAD_NEAR), false);
    }
}

PANEL_INLINE void quad_pass_large_m(const struct quad_pass *p, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    struct macrokernel_prefetch ahead = *p->ahead;
    quad_load(sums, rows, p);
    for (size_t begin = 0; begin < p->depth; begin += QUAD_RUN) {
        size_t end = p->depth - begin < QUAD_RUN ? p->depth : begin + QUAD_RUN;
        macro_prefetch(&ahead);
        for (size_t q = begin; q < end; q++) {
            if (ahead.again) {
                quad_prefetch_near(p, q);
            }
            quad_step(sums, rows, p, q);
        }
    }
    quad_store(sums, rows, p);
    *p->ahead = ahead;
}

QUAD_TILE_FUNCTION(quad_tile_large_m, quad_pass_large_m)

// What of panel `panel` the thread multiplies after `depth` quads from `first` on: NULL where it knows of none.
static const packed_quads *macro_next_quads(const struct macrokernel_args *args, size_t panel, size_t first, size_t depth) {
    if ((first + depth) * PACKED_I8_K < args->k) {
        return ((const struct packed_i8 *)args->panels[panel])->quads + first + depth;
    }
    return args->next ? ((const struct packed_i8 *)args->next[panel])->quads : NULL;
}

// Fetches panel `panel`'s share of the rows of the tile at `row`, from quad `first` on.
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

// Quads [first, first + depth) of K, tile by tile, each against all panels. elsewhere: what is fetched in place of the next block,
// or NULL.
static void macro_block_i8(const struct macrokernel_args *args, size_t first, size_t depth,
                           struct macrokernel_prefetch *elsewhere) {
    size_t tiles = (args->rows + PANEL_TILE - 1) / PANEL_TILE;
    size_t runs = tiles * (EXPERTD_KERNEL_PANEL / PANEL_PASS) * ((depth + QUAD_RUN - 1) / QUAD_RUN);
    quad_block_row x[PANEL_TILE];
    struct macrokernel_prefetch ahead[KERNEL_PANELS_MAX];
    for (size_t p = 0; p < args->count; p++) {
        ahead[p] = macrokernel_prefetch_over(macro_next_quads(args, p, first, depth), depth * QUAD_BYTES, runs);
        ahead[p].far = args->rows <= QUAD_SMALL_M_ROWS && prefetch_as_zen4();
        ahead[p].again = ahead[p].far ? PREFETCH_AGAIN : 0;
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
            pass.ahead = elsewhere ? elsewhere : &ahead[p];
            quad_tile_large_m(&pass, rows);
        }
    }
}

// What all blocks of a call fetch in place of panels.
static struct macrokernel_prefetch macro_elsewhere_i8(const struct macrokernel_args *args, size_t quads) {
    size_t tiles = (args->rows + PANEL_TILE - 1) / PANEL_TILE;
    size_t runs = args->count * tiles * (EXPERTD_KERNEL_PANEL / PANEL_PASS) * ((quads + QUAD_RUN - 1) / QUAD_RUN);
    return args->ahead.runs == 0 ? (struct macrokernel_prefetch){0} : macrokernel_prefetch_of(&args->ahead, runs, false);
}

void PANEL_TARGET(macrokernel_i8)(const struct macrokernel_args *args) {
    size_t quads = (args->k + PACKED_I8_K - 1) / PACKED_I8_K;
    struct macrokernel_prefetch elsewhere = macro_elsewhere_i8(args, quads);
    group_clear(args);
    size_t block = args->rows <= QUAD_SMALL_M_ROWS ? QUAD_SMALL_M_BLOCK : QUAD_BLOCK;
    for (size_t q = 0; q < quads; q += block) {
        macro_block_i8(args, q, quads - q < block ? quads - q : block, elsewhere.step ? &elsewhere : NULL);
    }
}
