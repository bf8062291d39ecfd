// The int8 microkernel for small m: rows by one panel. The including file includes quad_pass.h before this body, and names the
// result by PANEL_TARGET(name). Small m is bound by the read of the weights, which are prefetched as in panel_body.h. Large m:
// macrokernel_i8_body.h.
enum {
    QUAD_CHUNK = 128,           // quads of a chunk: 32 KiB of a panel
    QUAD_ROWS = 2 * PANEL_TILE, // most rows for which a panel is read from memory once
    // Up to this m Zen 4's hardware prefetcher is fast enough; with more rows lines are prefetched as codes are. 3 to 6 rows:
    // .82-.90 -> .91-.96 of the roof, where memory gives 50 GB/s .6-.7 -> .8-.9; one row would be .96 as fast.
    QUAD_READ_ROWS = 2,
};

typedef int32_t panel_row[EXPERTD_KERNEL_PANEL] __attribute__((aligned(64)));
typedef uint32_t quad_row[QUAD_CHUNK * QUAD_WORDS] __attribute__((aligned(64)));

// `rows` is a constant in each copy, so that the sums are registers.
PANEL_INLINE void quad_pass_small_m(const struct quad_pass *p, size_t rows) {
    vec sums[PANEL_TILE][PANEL_VECS];
    quad_load(sums, rows, p);
    for (size_t q = 0; q < p->depth; q++) {
        uintptr_t ahead = (uintptr_t)p->small_m_prefetch + ((p->step + q) >> p->shift) * QUAD_BYTES + p->column * PACKED_I8_K;
        PANEL_UNROLL for (size_t line = 0; line < PANEL_PASS * PACKED_I8_K; line += 64) {
            if (rows > QUAD_READ_ROWS && p->small_m_as_codes) {
                prefetch_line((const void *)(ahead + line), PREFETCH_CODES_ZEN4);
            } else {
                prefetch_streamed((const void *)(ahead + line), (struct prefetch_stream){0, p->small_m_more});
            }
        }
        quad_step(sums, rows, p, q);
    }
    quad_store(sums, rows, p);
}

QUAD_TILE_FUNCTION(quad_tile_small_m, quad_pass_small_m)

// Rows [row, row + rows) of the call, at most QUAD_ROWS, over the whole of K.
static void panel_rows_i8(const struct panel_args *args, size_t row, size_t rows) {
    const struct packed_i8 *panel = args->panel;
    size_t quads = (args->k + PACKED_I8_K - 1) / PACKED_I8_K;
    panel_row block[QUAD_ROWS];
    quad_row x[PANEL_TILE];
    for (size_t r = 0; r < rows; r++) {
        if (STARTS_AT_OFFSETS) {
            memcpy(block[r], panel->offsets, sizeof block[r]);
        } else {
            memset(block[r], 0, sizeof block[r]);
        }
    }
    for (size_t q = 0; q < quads; q += QUAD_CHUNK) {
        struct quad_pass pass = {.panel = panel->quads + q,
                                 .depth = quads - q < QUAD_CHUNK ? quads - q : QUAD_CHUNK,
                                 .sums_stride = EXPERTD_KERNEL_PANEL};
        pass.shift = rows > PANEL_TILE;
        pass.small_m_as_codes = !pass.shift && prefetch_as_zen4();
        struct prefetch_stream stream = pass.shift ? (struct prefetch_stream){pass.depth * QUAD_BYTES, 0} : prefetch_stream_ahead();
        pass.small_m_prefetch = (const char *)((uintptr_t)pass.panel + stream.near);
        pass.small_m_more = stream.more;
        for (size_t at = 0, tile; at < rows; at += tile, pass.step += pass.depth) {
            tile = panel_tile_rows(rows, at);
            for (size_t r = 0; r < tile; r++) {
                prepare_quads(args->x[row + at + r], args->k, q, pass.depth, x[r]);
                pass.x[r] = x[r];
            }
            pass.sums = block[at];
            quad_tile_small_m(&pass, tile);
        }
    }
    for (size_t r = 0; r < rows; r++) {
        memcpy(args->out + (row + r) * args->out_stride, block[r], args->columns * sizeof *args->out);
    }
}

void PANEL_TARGET(panel_i8)(const struct panel_args *args) {
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = args->rows - row < QUAD_ROWS ? args->rows - row : QUAD_ROWS;
        panel_rows_i8(args, row, rows);
    }
}
