// Files keep codes in rows along K, in words along K that lie side by side (GPTQ), or in words along N (AWQ). Each form is read by
// words: a row's by the turning of lines that panels of plain weights are packed by, GPTQ's as they lie, AWQ's as blocks of 8 by 8
// nibbles, turned by three exchanges. Anything else goes code by code. Loops over a row of words take all 64 columns, so that the
// compiler makes vectors of them.
#include "kernels/packing/quantised_codes.h"

#include <string.h>

#include "base/err.h"
#include "kernels/layout/pack.h"

enum { NIBBLES = 8, BLOCK_WORDS = 64, SMALL_M_WORDS = 16, WORDS_AHEAD = 8, LINE = 64 };

typedef uint32_t vector __attribute__((vector_size(16)));

enum form {
    FORM_ROWS,     // neighbouring k side by side, rows beginning with a byte
    FORM_BY_DEPTH, // words of neighbouring k, columns side by side
    FORM_ALONG_N,  // words of 8 neighbouring columns, side by side; 4 bits
    FORM_ANY,
};

static enum form form_of(const struct expertd_code_words *c) {
    size_t word = codes_of_word(c->bits);
    if (c->add != 0) {
        return FORM_ANY;
    }
    if (c->order == NULL && c->k_stride == 1 && c->k_word_stride == c->word && c->n_word_stride == c->word * c->n_stride) {
        return c->bits == 8 || c->n_stride % 2 == 0 ? FORM_ROWS : FORM_ANY;
    }
    if (c->word != word) {
        return FORM_ANY;
    }
    if (c->order == NULL && c->k_stride == 1 && c->n_stride == word && c->n_word_stride == word * word) {
        return c->k_word_stride % word == 0 ? FORM_BY_DEPTH : FORM_ANY;
    }
    bool along_n = c->bits == 4 && c->n_stride == 1 && c->n_word_stride == NIBBLES && c->k_word_stride == NIBBLES * c->k_stride;
    return along_n && c->k_stride % NIBBLES == 0 ? FORM_ALONG_N : FORM_ANY;
}

static size_t k_at(const struct codes_block *b, size_t i) {
    return b->k_order ? b->k_order[b->k + i] : b->k + i;
}

static size_t words_of(const struct codes_block *b) {
    size_t word = codes_of_word(b->codes->bits);
    return (b->depth + word - 1) / word;
}

// ---- the forms

static const uint8_t *row_at(const struct expertd_code_words *c, size_t n, size_t k) {
    return (const uint8_t *)c->data + (n * c->n_stride + k) * c->bits / 8;
}

static void rows_to_words(const struct codes_block *b, uint32_t *words) {
    const struct expertd_code_words *c = b->codes;
    struct pack_args args = {.src = row_at(c, b->n, b->k),
                             .stride = c->n_stride * c->bits / 8,
                             .element = 1,
                             .lines = b->columns,
                             .k = (b->depth * c->bits + 7) / 8,
                             .panels = words,
                             .panel_bytes = BLOCK_WORDS * EXPERTD_KERNEL_PANEL * sizeof *words};
    kernel_selected()->pack_k_major(&args);
}

static size_t depth_stride(const struct expertd_code_words *c) {
    return c->k_word_stride / codes_of_word(c->bits) * sizeof(uint32_t);
}

static const char *depth_at(const struct codes_block *b, size_t k) {
    return (const char *)b->codes->data + k / codes_of_word(b->codes->bits) * depth_stride(b->codes) + b->n * sizeof(uint32_t);
}

static void depth_to_words(const struct codes_block *b, uint32_t *words) {
    size_t stride = depth_stride(b->codes);
    const char *from = depth_at(b, b->k);
    for (size_t w = 0; w < words_of(b); w++, from += stride) {
        __builtin_prefetch((const void *)((uintptr_t)from + WORDS_AHEAD * stride));
        memcpy(words + w * EXPERTD_KERNEL_PANEL, from, b->columns * sizeof *words);
    }
}

// Words to come out of rows of words, a code of each: of code i its row and the bits to its right.
struct sorted_codes {
    const char *from[NIBBLES];
    unsigned right[NIBBLES];
};

// Of `bytes`, at most a vector, at `at` in each row. `bits` is a constant at each call.
static inline __attribute__((always_inline)) vector sort_words(const struct sorted_codes *s, unsigned bits, size_t at,
                                                               size_t bytes) {
    vector all = {0};
    for (size_t i = 0; i < 32 / bits; i++) {
        vector v = {0};
        if (bytes == sizeof v) {
            memcpy(&v, s->from[i] + at, sizeof v);
        } else {
            memcpy(&v, s->from[i] + at, bytes);
        }
        all |= (v >> s->right[i] & ((1u << bits) - 1)) << (i * bits);
    }
    return all;
}

static void sorted_depth_to_words(const struct codes_block *b, uint32_t *words) {
    size_t bits = b->codes->bits, word = codes_of_word(b->codes->bits);
    struct sorted_codes s;
    for (size_t w = 0; w < words_of(b); w++, words += EXPERTD_KERNEL_PANEL) {
        for (size_t i = 0; i < NIBBLES; i++) { // of 8 bits the second half is the first again, and not read
            size_t code = w * word + i % word, k = k_at(b, code < b->depth ? code : 0); // what is not there is cut off in the end
            s.from[i] = depth_at(b, k);
            s.right[i] = (unsigned)(k % word * bits);
        }
        size_t bytes = b->columns * sizeof *words;
        for (size_t at = 0; at < bytes; at += sizeof(vector)) {
            size_t left = bytes - at < sizeof(vector) ? bytes - at : sizeof(vector);
            vector all = bits == 4 ? sort_words(&s, 4, at, left) : sort_words(&s, 8, at, left);
            memcpy((char *)words + at, &all, sizeof all);
        }
    }
}

// Rows r and r + apart: half of their codes change places, those of the first that `mask` takes after the shift with those that it
// takes of the second.
static inline void exchange(vector *rows, size_t apart, int shift, uint32_t mask) {
    for (size_t i = 0; i < NIBBLES / 2; i++) {
        vector *a = rows + i / apart * 2 * apart + i % apart, *b = a + apart;
        vector changed = (*a >> shift ^ *b) & mask;
        *b ^= changed;
        *a ^= changed << shift;
    }
}

// Nibble j of row i becomes nibble i of row j.
static inline void transpose_nibbles(vector rows[NIBBLES]) {
    exchange(rows, 4, 16, 0x0000ffffu);
    exchange(rows, 2, 8, 0x00ff00ffu);
    exchange(rows, 1, 4, 0x0f0f0f0fu);
}

// Columns whose number modulo 8 is the same side by side: words[w][NIBBLES of a file's word][EXPERTD_KERNEL_PANEL / NIBBLES].
static void along_n_to_nibbles(const struct codes_block *b, uint32_t *words) {
    enum { AT_ONCE = sizeof(vector) / sizeof(uint32_t), ROW = EXPERTD_KERNEL_PANEL / NIBBLES };
    size_t stride = b->codes->k_stride / 2, bytes = (b->columns + NIBBLES - 1) / NIBBLES * sizeof(uint32_t);
    const char *data = (const char *)b->codes->data + b->n / 2;
    for (size_t w = 0; w < words_of(b); w++, words += EXPERTD_KERNEL_PANEL) {
        uint32_t rows[NIBBLES][ROW];
        for (size_t i = 0; i < NIBBLES; i++) {
            bool there = w * NIBBLES + i < b->depth;
            const char *row = data + (there ? k_at(b, w * NIBBLES + i) * stride : 0);
            __builtin_prefetch((const void *)((uintptr_t)row + LINE));
            if (there && bytes == sizeof rows[i]) {
                memcpy(rows[i], row, sizeof rows[i]);
            } else {
                memset(rows[i], 0, sizeof rows[i]);
                memcpy(rows[i], row, there ? bytes : 0);
            }
        }
        for (size_t j = 0; j < ROW; j += AT_ONCE) {
            vector transposed[NIBBLES];
            for (size_t i = 0; i < NIBBLES; i++) {
                memcpy(&transposed[i], rows[i] + j, sizeof transposed[i]);
            }
            transpose_nibbles(transposed);
            for (size_t i = 0; i < NIBBLES; i++) {
                memcpy(words + i * ROW + j, &transposed[i], sizeof transposed[i]);
            }
        }
    }
}

// Where along_n_to_nibbles puts a column.
static size_t nibbles_at(const struct expertd_code_words *c, size_t column) {
    size_t in_word = column % NIBBLES;
    return (c->order ? c->order[in_word] : in_word) * (EXPERTD_KERNEL_PANEL / NIBBLES) + column / NIBBLES;
}

static void along_n_to_words(const struct codes_block *b, uint32_t *words) {
    size_t at[EXPERTD_KERNEL_PANEL];
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column++) {
        at[column] = nibbles_at(b->codes, column);
    }
    along_n_to_nibbles(b, words);
    for (size_t w = 0; w < words_of(b); w++, words += EXPERTD_KERNEL_PANEL) {
        uint32_t nibbles[EXPERTD_KERNEL_PANEL];
        memcpy(nibbles, words, sizeof nibbles);
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column++) {
            words[column] = nibbles[at[column]];
        }
    }
}

static void codes_one_by_one(const struct codes_block *b, uint32_t *words) {
    const struct expertd_code_words *c = b->codes;
    size_t word = codes_of_word(c->bits);
    uint32_t mask = (1u << c->bits) - 1;
    for (size_t w = 0; w < words_of(b); w++) {
        for (size_t column = 0; column < b->columns; column++) {
            uint32_t all = 0;
            for (size_t i = 0; i < word && w * word + i < b->depth; i++) {
                all |= (expertd_quantised_code(c, b->n + column, k_at(b, w * word + i)) & mask) << (i * c->bits);
            }
            words[w * EXPERTD_KERNEL_PANEL + column] = all;
        }
    }
}

// ---- flips and ends

// The flip of every code of a word, and none of those that are not there.
static uint32_t flip_of(const struct expertd_code_words *c) {
    return c->bits == 8 ? c->flip * 0x01010101u : (c->flip & 15u) * 0x11111111u;
}

static void flip_and_trim(const struct codes_block *b, uint32_t *words) {
    uint32_t flip = flip_of(b->codes);
    size_t word = codes_of_word(b->codes->bits), count = words_of(b), left = b->depth % word;
    for (size_t i = 0; flip && i < count * EXPERTD_KERNEL_PANEL; i++) {
        words[i] ^= flip;
    }
    for (size_t column = 0; left && column < EXPERTD_KERNEL_PANEL; column++) {
        words[(count - 1) * EXPERTD_KERNEL_PANEL + column] &= (1u << (left * b->codes->bits)) - 1;
    }
}

void codes_to_words(const struct codes_block *b, uint32_t *words) {
    INVARIANT(b->columns <= EXPERTD_KERNEL_PANEL && b->k % NIBBLES == 0 && (b->codes->bits == 4 || b->codes->bits == 8));
    enum form form = form_of(b->codes);
    if (form == FORM_ANY || (form == FORM_ROWS && b->k_order) || (form == FORM_ALONG_N && b->n % NIBBLES != 0)) {
        codes_one_by_one(b, words);
        return;
    }
    if (form == FORM_ROWS) {
        rows_to_words(b, words);
    } else if (form == FORM_ALONG_N) {
        along_n_to_words(b, words);
    } else {
        (b->k_order ? sorted_depth_to_words : depth_to_words)(b, words);
    }
    flip_and_trim(b, words);
}

// ---- whole rows

// words[count][EXPERTD_KERNEL_PANEL], their rows `stride` bytes apart, to out[EXPERTD_KERNEL_PANEL][BLOCK_WORDS].
static void turn(const void *words, size_t stride, size_t count, size_t columns, uint32_t *out) {
    struct pack_args args = {.src = words,
                             .stride = stride,
                             .element = 1,
                             .lines = count,
                             .k = columns * sizeof *out,
                             .panels = out,
                             .panel_bytes = BLOCK_WORDS * EXPERTD_KERNEL_PANEL * sizeof *out};
    kernel_selected()->pack_k_major(&args);
}

// To out[EXPERTD_KERNEL_PANEL][BLOCK_WORDS]; place[column]: the row of it that is the column's.
static void codes_to_transposed(const struct codes_block *b, enum form form, uint32_t *out, size_t place[EXPERTD_KERNEL_PANEL]) {
    _Alignas(64) uint32_t words[BLOCK_WORDS * EXPERTD_KERNEL_PANEL];
    const struct expertd_code_words *c = b->codes;
    bool along_n = form == FORM_ALONG_N;
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column++) {
        place[column] = along_n ? nibbles_at(c, column) : column;
    }
    if (form == FORM_BY_DEPTH && !b->k_order && !c->flip && b->depth % codes_of_word(c->bits) == 0) {
        turn(depth_at(b, b->k), depth_stride(c), words_of(b), b->columns, out);
        return;
    }
    if (along_n) {
        along_n_to_nibbles(b, words);
        flip_and_trim(b, words);
    } else {
        codes_to_words(b, words);
    }
    turn(words, EXPERTD_KERNEL_PANEL * sizeof *words, words_of(b), along_n ? EXPERTD_KERNEL_PANEL : b->columns, out);
}

// rows: of the block's columns and k.
static void put_rows(const struct codes_block *b, size_t row_bytes, uint8_t *rows) {
    _Alignas(64) uint32_t transposed[EXPERTD_KERNEL_PANEL][BLOCK_WORDS];
    size_t place[EXPERTD_KERNEL_PANEL], bytes = (b->depth * b->codes->bits + 7) / 8;
    codes_to_transposed(b, form_of(b->codes), transposed[0], place);
    for (size_t column = 0; column < b->columns; column++) {
        memcpy(rows + column * row_bytes, transposed[place[column]], bytes);
    }
}

// Words along N: all columns of a few k, for half of a line is the next columns', and still in cache then.
void expertd_quantised_codes_as_rows(const struct expertd_code_words *c, size_t n, size_t k, uint8_t *rows) {
    bool along_n = form_of(c) == FORM_ALONG_N;
    size_t row_bytes = (k * c->bits + 7) / 8, block_k = (along_n ? SMALL_M_WORDS : BLOCK_WORDS) * codes_of_word(c->bits);
    size_t k_blocks = (k + block_k - 1) / block_k, n_blocks = (n + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL;
    for (size_t i = 0; i < k_blocks * n_blocks; i++) {
        struct codes_block b = {.codes = c};
        b.k = (along_n ? i / n_blocks : i % k_blocks) * block_k;
        b.n = (along_n ? i % n_blocks : i / k_blocks) * EXPERTD_KERNEL_PANEL;
        b.depth = k - b.k < block_k ? k - b.k : block_k;
        b.columns = n - b.n < EXPERTD_KERNEL_PANEL ? n - b.n : EXPERTD_KERNEL_PANEL;
        put_rows(&b, row_bytes, rows + b.n * row_bytes + b.k * c->bits / 8);
    }
}

size_t expertd_quantised_sorting_bytes(const struct expertd_code_words *c, size_t k) {
    size_t word = codes_of_word(c->bits);
    return (k + word - 1) / word * EXPERTD_KERNEL_PANEL * sizeof(uint32_t);
}

// A panel's columns over the whole of K side by side: sorted k come from everywhere, and rows of a file, often a power of two
// apart, would push one another out of the caches.
void expertd_quantised_codes_as_sorted_rows(const struct expertd_code_words *c, const uint32_t *k_order, size_t n, size_t k,
                                            void *scratch, uint8_t *rows) {
    uint32_t *panel = scratch;
    size_t word = codes_of_word(c->bits), row_bytes = (k * c->bits + 7) / 8, block_k = BLOCK_WORDS * word;
    struct expertd_code_words in_panel = {panel, c->bits, word, word, word * word, 1, word * EXPERTD_KERNEL_PANEL, NULL, 0, 0};
    for (size_t first = 0; first < n; first += EXPERTD_KERNEL_PANEL) {
        struct codes_block b = {.codes = c, .n = first};
        b.columns = n - first < EXPERTD_KERNEL_PANEL ? n - first : EXPERTD_KERNEL_PANEL;
        for (; b.k < k; b.k += block_k) {
            b.depth = k - b.k < block_k ? k - b.k : block_k;
            codes_to_words(&b, panel + b.k / word * EXPERTD_KERNEL_PANEL);
        }
        b.codes = &in_panel, b.k_order = k_order, b.n = 0;
        for (b.k = 0; b.k < k; b.k += block_k) {
            b.depth = k - b.k < block_k ? k - b.k : block_k;
            put_rows(&b, row_bytes, rows + first * row_bytes + b.k * c->bits / 8);
        }
    }
}

// Codes to bytes.
static void spread(const uint32_t *words, unsigned bits, uint8_t add, size_t count, uint8_t *out) {
    size_t word = codes_of_word(bits);
    uint32_t mask = (1u << bits) - 1;
    for (size_t i = 0; i < count; i++) {
        out[i] = (uint8_t)((words[i / word] >> (i % word * bits) & mask) + add);
    }
}

void expertd_quantised_codes_as_bytes(const struct expertd_code_words *c, size_t n, size_t k, uint8_t *bytes) {
    _Alignas(64) uint32_t transposed[EXPERTD_KERNEL_PANEL][BLOCK_WORDS];
    struct expertd_code_words in_words = *c;
    in_words.add = 0; // whose carry a word has no room for
    enum form form = form_of(&in_words);
    size_t word = codes_of_word(c->bits), place[EXPERTD_KERNEL_PANEL];
    struct codes_block b = {.codes = &in_words};
    for (; b.n < n; b.n += EXPERTD_KERNEL_PANEL) {
        b.columns = n - b.n < EXPERTD_KERNEL_PANEL ? n - b.n : EXPERTD_KERNEL_PANEL;
        for (b.k = 0; b.k < k; b.k += b.depth) {
            b.depth = k - b.k < BLOCK_WORDS * word ? k - b.k : BLOCK_WORDS * word;
            codes_to_transposed(&b, form, transposed[0], place);
            for (size_t column = 0; column < b.columns; column++) {
                spread(transposed[place[column]], c->bits, c->add, b.depth, bytes + (b.n + column) * k + b.k);
            }
        }
    }
}
