// Files hold codes as rows of consecutive k ([n,k]), as 32-bit words of consecutive k with consecutive columns side by side (GPTQ),
// as words of consecutive columns (AWQ), or as bytes of one or two k with consecutive columns side by side (transposed rows). Each
// of these forms is read by words: rows by the backend's transposition that packs plain weights, GPTQ's words unchanged, AWQ's
// words as blocks of 8 x 8 nibbles that three exchange steps transpose, bytes four rows at a time. Any other form is read code by
// code. Loops over a row of words take all 64 columns, so that the compiler vectorises them.
#include "kernels/packing/quantised_codes.h"

#include <string.h>

#include "base/err.h"
#include "kernels/layout/pack.h"

enum { NIBBLES = 8, BLOCK_WORDS = 64, N_BLOCK_WORDS = 16, WORDS_AHEAD = 8, LINE = 64 };

typedef uint32_t vector __attribute__((vector_size(16)));

enum form {
    FORM_ROWS,    // rows of consecutive k, each starting at a byte
    FORM_K_WORDS, // words of consecutive k; consecutive columns side by side
    FORM_K_BYTES, // bytes of consecutive k; consecutive columns side by side
    FORM_N_WORDS, // words of 8 consecutive columns, side by side; 4 bits only
    FORM_ANY,
};

static enum form form_of(const struct expertd_code_words *c) {
    size_t word = codes_per_word(c->bits);
    if (c->add != 0) {
        return FORM_ANY;
    }
    if (c->order == NULL && c->k_stride == 1 && c->k_word_stride == c->word && c->n_word_stride == c->word * c->n_stride) {
        return c->bits == 8 || c->n_stride % 2 == 0 ? FORM_ROWS : FORM_ANY;
    }
    if (c->order == NULL && c->k_stride == 1 && c->n_stride == c->word && c->n_word_stride == c->word * c->word &&
        c->k_word_stride % c->word == 0) {
        return c->word == word ? FORM_K_WORDS : c->word == 8 / c->bits ? FORM_K_BYTES : FORM_ANY;
    }
    if (c->word != word) {
        return FORM_ANY;
    }
    bool n_words = c->bits == 4 && c->n_stride == 1 && c->n_word_stride == NIBBLES && c->k_word_stride == NIBBLES * c->k_stride;
    return n_words && c->k_stride % NIBBLES == 0 ? FORM_N_WORDS : FORM_ANY;
}

static size_t k_at(const struct codes_block *b, size_t i) {
    return b->k_order ? b->k_order[b->k + i] : b->k + i;
}

static size_t words_of(const struct codes_block *b) {
    size_t word = codes_per_word(b->codes->bits);
    return (b->depth + word - 1) / word;
}

// ---- reading each form

static const uint8_t *row_at(const struct expertd_code_words *c, size_t n, size_t k) {
    return (const uint8_t *)c->data + (n * c->n_stride + k) * c->bits / 8;
}

static void read_rows(const struct codes_block *b, uint32_t *words) {
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

static size_t k_words_stride(const struct expertd_code_words *c) {
    return c->k_word_stride / codes_per_word(c->bits) * sizeof(uint32_t);
}

static const char *k_words_at(const struct codes_block *b, size_t k) {
    return (const char *)b->codes->data + k / codes_per_word(b->codes->bits) * k_words_stride(b->codes) + b->n * sizeof(uint32_t);
}

static void read_k_words(const struct codes_block *b, uint32_t *words) {
    size_t stride = k_words_stride(b->codes);
    const char *from = k_words_at(b, b->k);
    for (size_t w = 0; w < words_of(b); w++, from += stride) {
        __builtin_prefetch((const void *)((uintptr_t)from + WORDS_AHEAD * stride));
        memcpy(words + w * EXPERTD_KERNEL_PANEL, from, b->columns * sizeof *words);
    }
}

static void read_k_bytes(const struct codes_block *b, uint32_t *words) {
    const struct expertd_code_words *c = b->codes;
    size_t k_of_byte = 8 / c->bits, stride = c->k_word_stride / k_of_byte;
    const uint8_t *from = (const uint8_t *)c->data + b->k / k_of_byte * stride + b->n;
    for (size_t w = 0; w < words_of(b); w++, words += EXPERTD_KERNEL_PANEL) {
        memset(words, 0, b->columns * sizeof *words);
        for (size_t i = 0; i < sizeof *words && w * codes_per_word(c->bits) + i * k_of_byte < b->depth; i++, from += stride) {
            for (size_t column = 0; column < b->columns; column++) {
                words[column] |= (uint32_t)from[column] << (8 * i);
            }
        }
    }
}

// Where the codes of a word with sorted k come from: code i is in the words at from[i], `shift[i]` bits from the low end.
struct sorted_codes {
    const char *from[NIBBLES];
    unsigned shift[NIBBLES];
};

// The words of the columns at byte `at`, of `bytes` bytes, at most a vector. `bits` is a compile-time constant at each call.
static inline __attribute__((always_inline)) vector gather_sorted(const struct sorted_codes *s, unsigned bits, size_t at,
                                                                  size_t bytes) {
    vector all = {0};
    for (size_t i = 0; i < 32 / bits; i++) {
        vector v = {0};
        if (bytes == sizeof v) {
            memcpy(&v, s->from[i] + at, sizeof v);
        } else {
            memcpy(&v, s->from[i] + at, bytes);
        }
        all |= (v >> s->shift[i] & ((1u << bits) - 1)) << (i * bits);
    }
    return all;
}

static void read_sorted_k_words(const struct codes_block *b, uint32_t *words) {
    size_t bits = b->codes->bits, word = codes_per_word(b->codes->bits);
    struct sorted_codes s;
    for (size_t w = 0; w < words_of(b); w++, words += EXPERTD_KERNEL_PANEL) {
        for (size_t i = 0; i < NIBBLES; i++) { // with 8 bits the second half repeats the first and is not used
            size_t code = w * word + i % word, k = k_at(b, code < b->depth ? code : 0); // flip_and_trim clears codes past the end
            s.from[i] = k_words_at(b, k);
            s.shift[i] = (unsigned)(k % word * bits);
        }
        size_t bytes = b->columns * sizeof *words;
        for (size_t at = 0; at < bytes; at += sizeof(vector)) {
            size_t left = bytes - at < sizeof(vector) ? bytes - at : sizeof(vector);
            vector all = bits == 4 ? gather_sorted(&s, 4, at, left) : gather_sorted(&s, 8, at, left);
            memcpy((char *)words + at, &all, sizeof all);
        }
    }
}

// A step of a transposition: for each pair of rows that are `distance` apart, swaps the codes of the first under mask << shift with
// those of the second under mask.
static inline void exchange(vector *rows, size_t distance, int shift, uint32_t mask) {
    for (size_t i = 0; i < NIBBLES / 2; i++) {
        vector *a = rows + i / distance * 2 * distance + i % distance, *b = a + distance;
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

// Transposes AWQ's words to words of 8 consecutive k. Columns with the same position in a file's word are side by side:
// words[w][position][EXPERTD_KERNEL_PANEL / NIBBLES].
static void transpose_n_words(const struct codes_block *b, uint32_t *words) {
    enum { AT_ONCE = sizeof(vector) / sizeof(uint32_t), ROW = EXPERTD_KERNEL_PANEL / NIBBLES };
    size_t stride = b->codes->k_stride / 2, bytes = (b->columns + NIBBLES - 1) / NIBBLES * sizeof(uint32_t);
    const char *data = (const char *)b->codes->data + b->n / 2;
    for (size_t w = 0; w < words_of(b); w++, words += EXPERTD_KERNEL_PANEL) {
        uint32_t rows[NIBBLES][ROW];
        for (size_t i = 0; i < NIBBLES; i++) {
            bool present = w * NIBBLES + i < b->depth;
            const char *row = data + (present ? k_at(b, w * NIBBLES + i) * stride : 0);
            __builtin_prefetch((const void *)((uintptr_t)row + LINE));
            if (present && bytes == sizeof rows[i]) {
                memcpy(rows[i], row, sizeof rows[i]);
            } else {
                memset(rows[i], 0, sizeof rows[i]);
                memcpy(rows[i], row, present ? bytes : 0);
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

// The index of a column in the order of transpose_n_words.
static size_t n_words_column(const struct expertd_code_words *c, size_t column) {
    size_t in_word = column % NIBBLES;
    return (c->order ? c->order[in_word] : in_word) * (EXPERTD_KERNEL_PANEL / NIBBLES) + column / NIBBLES;
}

static void read_n_words(const struct codes_block *b, uint32_t *words) {
    size_t at[EXPERTD_KERNEL_PANEL];
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column++) {
        at[column] = n_words_column(b->codes, column);
    }
    transpose_n_words(b, words);
    for (size_t w = 0; w < words_of(b); w++, words += EXPERTD_KERNEL_PANEL) {
        uint32_t nibbles[EXPERTD_KERNEL_PANEL];
        memcpy(nibbles, words, sizeof nibbles);
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column++) {
            words[column] = nibbles[at[column]];
        }
    }
}

static void read_one_by_one(const struct codes_block *b, uint32_t *words) {
    const struct expertd_code_words *c = b->codes;
    size_t word = codes_per_word(c->bits);
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

// ---- flip, and the end of K

// The flip of a code, for every code of a word.
static uint32_t flip_of(const struct expertd_code_words *c) {
    return c->bits == 8 ? c->flip * 0x01010101u : (c->flip & 15u) * 0x11111111u;
}

// Flips all codes, then clears those past the end of K.
static void flip_and_trim(const struct codes_block *b, uint32_t *words) {
    uint32_t flip = flip_of(b->codes);
    size_t word = codes_per_word(b->codes->bits), count = words_of(b), left = b->depth % word;
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
    bool unsorted = form == FORM_ROWS || form == FORM_K_BYTES;
    if (form == FORM_ANY || (unsorted && b->k_order) || (form == FORM_N_WORDS && b->n % NIBBLES != 0)) {
        read_one_by_one(b, words);
        return;
    }
    if (form == FORM_ROWS) {
        read_rows(b, words);
    } else if (form == FORM_K_BYTES) {
        read_k_bytes(b, words);
    } else if (form == FORM_N_WORDS) {
        read_n_words(b, words);
    } else {
        (b->k_order ? read_sorted_k_words : read_k_words)(b, words);
    }
    flip_and_trim(b, words);
}

// ---- rows and bytes as results

// Transposes words[count][columns], whose rows are `stride` bytes apart, to out[EXPERTD_KERNEL_PANEL][BLOCK_WORDS].
static void transpose_words(const void *words, size_t stride, size_t count, size_t columns, uint32_t *out) {
    struct pack_args args = {.src = words,
                             .stride = stride,
                             .element = 1,
                             .lines = count,
                             .k = columns * sizeof *out,
                             .panels = out,
                             .panel_bytes = BLOCK_WORDS * EXPERTD_KERNEL_PANEL * sizeof *out};
    kernel_selected()->pack_k_major(&args);
}

// Reads a block to out[EXPERTD_KERNEL_PANEL][BLOCK_WORDS]. row_of_column[column]: the row of `out` that holds the column.
static void codes_to_transposed(const struct codes_block *b, enum form form, uint32_t *out,
                                size_t row_of_column[EXPERTD_KERNEL_PANEL]) {
    _Alignas(64) uint32_t words[BLOCK_WORDS * EXPERTD_KERNEL_PANEL];
    const struct expertd_code_words *c = b->codes;
    bool n_words = form == FORM_N_WORDS;
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column++) {
        row_of_column[column] = n_words ? n_words_column(c, column) : column;
    }
    if (form == FORM_K_WORDS && !b->k_order && !c->flip && b->depth % codes_per_word(c->bits) == 0) {
        transpose_words(k_words_at(b, b->k), k_words_stride(c), words_of(b), b->columns, out);
        return;
    }
    if (n_words) {
        transpose_n_words(b, words);
        flip_and_trim(b, words);
    } else {
        codes_to_words(b, words);
    }
    transpose_words(words, EXPERTD_KERNEL_PANEL * sizeof *words, words_of(b), n_words ? EXPERTD_KERNEL_PANEL : b->columns, out);
}

// Writes the block to the rows of its columns. rows: the address of the block's first code.
static void write_rows(const struct codes_block *b, size_t row_bytes, uint8_t *rows) {
    _Alignas(64) uint32_t transposed[EXPERTD_KERNEL_PANEL][BLOCK_WORDS];
    size_t row_of_column[EXPERTD_KERNEL_PANEL], bytes = (b->depth * b->codes->bits + 7) / 8;
    codes_to_transposed(b, form_of(b->codes), transposed[0], row_of_column);
    for (size_t column = 0; column < b->columns; column++) {
        memcpy(rows + column * row_bytes, transposed[row_of_column[column]], bytes);
    }
}

// AWQ's words are read for all columns of a few k at a time: half of a cache line belongs to the next panel's columns, and is then
// still in cache.
void expertd_quantised_codes_as_rows(const struct expertd_code_words *c, size_t n, size_t k, uint8_t *rows) {
    bool n_words = form_of(c) == FORM_N_WORDS;
    size_t row_bytes = (k * c->bits + 7) / 8, block_k = (n_words ? N_BLOCK_WORDS : BLOCK_WORDS) * codes_per_word(c->bits);
    size_t k_blocks = (k + block_k - 1) / block_k, n_blocks = (n + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL;
    for (size_t i = 0; i < k_blocks * n_blocks; i++) {
        struct codes_block b = {.codes = c};
        b.k = (n_words ? i / n_blocks : i % k_blocks) * block_k;
        b.n = (n_words ? i % n_blocks : i / k_blocks) * EXPERTD_KERNEL_PANEL;
        b.depth = k - b.k < block_k ? k - b.k : block_k;
        b.columns = n - b.n < EXPERTD_KERNEL_PANEL ? n - b.n : EXPERTD_KERNEL_PANEL;
        write_rows(&b, row_bytes, rows + b.n * row_bytes + b.k * c->bits / 8);
    }
}

size_t expertd_quantised_sorting_bytes(const struct expertd_code_words *c, size_t k) {
    size_t word = codes_per_word(c->bits);
    return (k + word - 1) / word * EXPERTD_KERNEL_PANEL * sizeof(uint32_t);
}

// First a panel's columns over the whole of K are copied to scratch, then k are sorted from there: sorted k are scattered over K,
// and rows of a file, often a power of two apart, would evict each other from the caches.
void expertd_quantised_codes_as_sorted_rows(const struct expertd_code_words *c, const uint32_t *k_order, size_t n, size_t k,
                                            void *scratch, uint8_t *rows) {
    uint32_t *panel = scratch;
    size_t word = codes_per_word(c->bits), row_bytes = (k * c->bits + 7) / 8, block_k = BLOCK_WORDS * word;
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
            write_rows(&b, row_bytes, rows + first * row_bytes + b.k * c->bits / 8);
        }
    }
}

// Writes `count` codes of one column as bytes.
static void write_bytes(const uint32_t *words, unsigned bits, uint8_t add, size_t count, uint8_t *out) {
    size_t word = codes_per_word(bits);
    uint32_t mask = (1u << bits) - 1;
    for (size_t i = 0; i < count; i++) {
        out[i] = (uint8_t)((words[i / word] >> (i % word * bits) & mask) + add);
    }
}

void expertd_quantised_codes_as_bytes(const struct expertd_code_words *c, size_t n, size_t k, uint8_t *bytes) {
    _Alignas(64) uint32_t transposed[EXPERTD_KERNEL_PANEL][BLOCK_WORDS];
    struct expertd_code_words in_words = *c;
    in_words.add = 0; // added to the bytes instead: in a word it could carry into the next code
    enum form form = form_of(&in_words);
    size_t word = codes_per_word(c->bits), row_of_column[EXPERTD_KERNEL_PANEL];
    struct codes_block b = {.codes = &in_words};
    for (; b.n < n; b.n += EXPERTD_KERNEL_PANEL) {
        b.columns = n - b.n < EXPERTD_KERNEL_PANEL ? n - b.n : EXPERTD_KERNEL_PANEL;
        for (b.k = 0; b.k < k; b.k += b.depth) {
            b.depth = k - b.k < BLOCK_WORDS * word ? k - b.k : BLOCK_WORDS * word;
            codes_to_transposed(&b, form, transposed[0], row_of_column);
            for (size_t column = 0; column < b.columns; column++) {
                write_bytes(transposed[row_of_column[column]], c->bits, c->add, b.depth, bytes + (b.n + column) * k + b.k);
            }
        }
    }
}
