#include "tiles.h"

#include <immintrin.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "bochs.h"
#include "memory.h"
#include "program.h"

enum {
    TILES = 8,
    ROWS = 16,
    ROW_BYTES = 64,
    WORDS = ROW_BYTES / 4,
    MAP_0F38 = 2,
    NO_PREFIX = 0,
    PREFIX_66 = 1,
    PREFIX_F3 = 2,
    PREFIX_F2 = 3, // VEX.pp
    OPCODE_CONFIGURE = 0x49,
    OPCODE_MOVE = 0x4b,
    OPCODE_BF16 = 0x5c,
    OPCODE_INT8 = 0x5e,
    REGISTERS_ONLY = 3, // ModRM.mod
    WITH_SIB = 4,
    NO_BASE = 5,
    SHORTEST = 5,
    LONGEST = 10,           // with a SIB byte and four bytes of displacement
    MXCSR_FLUSHED = 0x9fc0, // FTZ, DAZ, round to nearest, every exception masked
    KILLED_BY_SEGV = 139,
};

struct tile {
    uint8_t row[ROWS][ROW_BYTES];
};

// The operand of LDTILECFG.
struct configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static struct {
    struct configuration configuration;
    struct tile tiles[TILES];
} unit;

struct instruction {
    unsigned prefix, opcode, mod, reg, rm, other; // other: VEX.vvvv
    uint64_t address, stride, next;               // address and stride: of memory operands
};

// Decodes a memory operand: address = base + displacement; stride = index * scale, which tile loads and stores use as the row
// stride.
static void resolve(struct instruction *i, const uint8_t *code, uint64_t at, unsigned extend_base, unsigned extend_index) {
    size_t used = SHORTEST;
    uint64_t base = 0;
    int64_t displacement = 0;
    bool relative = i->mod == 0 && i->rm == NO_BASE;
    unsigned low = i->rm;
    if (i->rm == WITH_SIB) {
        unsigned sib = code[used++], index = (sib >> 3 & 7) | extend_index << 3;
        low = sib & 7;
        i->stride = index == RSP ? 0 : cpu_get_reg64(BOCHS_CPU, index) << (sib >> 6);
    }
    bool without_base = i->mod == 0 && low == NO_BASE;
    if (!without_base) {
        base = cpu_get_reg64(BOCHS_CPU, low | extend_base << 3);
    }
    if (i->mod == 1) {
        displacement = (code[used++] ^ 0x80) - 0x80; // sign extension
    } else if (i->mod == 2 || without_base) {
        int32_t wide;
        memcpy(&wide, code + used, sizeof wide);
        displacement = wide;
        used += sizeof wide;
    }
    i->next = at + used;
    i->address = base + (uint64_t)displacement + (relative ? i->next : 0);
}

// All of these instructions have a three-byte VEX prefix, map 0F38, W 0, 128 bits.
static bool decode(uint64_t at, struct instruction *i) {
    const uint8_t *code = memory_host(at);
    if (!code || code[0] != 0xc4 || (code[1] & 31) != MAP_0F38 || (code[2] & 0x84) != 0) {
        return false;
    }
    unsigned extend_reg = !(code[1] & 0x80), extend_index = !(code[1] & 0x40), extend_base = !(code[1] & 0x20);
    *i = (struct instruction){.prefix = code[2] & 3,
                              .other = ~code[2] >> 3 & 15,
                              .opcode = code[3],
                              .mod = code[4] >> 6,
                              .reg = (code[4] >> 3 & 7) | extend_reg << 3,
                              .rm = code[4] & 7,
                              .next = at + SHORTEST};
    if (i->opcode != OPCODE_CONFIGURE && i->opcode != OPCODE_MOVE && i->opcode != OPCODE_BF16 && i->opcode != OPCODE_INT8) {
        return false;
    }
    if (i->mod != REGISTERS_ONLY) {
        resolve(i, code, at, extend_base, extend_index);
    } else {
        i->rm |= extend_base << 3;
    }
    return true;
}

static uint8_t *operand(uint64_t address, uint64_t bytes, bool write) {
    if (!memory_allows(address, bytes, write)) {
        fprintf(stderr, "emulated: the tile row at %#" PRIx64 " lies outside the program's memory\n", address);
        program_end(KILLED_BY_SEGV);
    }
    return memory_host(address);
}

static bool is_set(unsigned tile) {
    return tile < TILES && unit.configuration.palette == 1 && unit.configuration.rows[tile] > 0;
}

static bool fits(const struct configuration *c) {
    static const uint8_t ZEROS[16];
    bool good = c->palette == 1 && c->start_row == 0 && memcmp(c->reserved, ZEROS, sizeof c->reserved) == 0 &&
                memcmp(c->row_bytes + TILES, ZEROS, 16) == 0 && memcmp(c->rows + TILES, ZEROS, 8) == 0;
    for (int t = 0; t < TILES; t++) {
        good = good && c->row_bytes[t] <= ROW_BYTES && c->rows[t] <= ROWS && !c->row_bytes[t] == !c->rows[t];
    }
    return good;
}

static bool configure(const struct instruction *i) {
    struct configuration *c = &unit.configuration;
    if (i->prefix == PREFIX_66) {
        memcpy(operand(i->address, sizeof *c, true), c, sizeof *c);
        return true;
    }
    if (i->prefix != NO_PREFIX) {
        return false;
    }
    struct configuration wanted;
    memcpy(&wanted, operand(i->address, sizeof wanted, false), sizeof wanted);
    memset(&unit, 0, sizeof unit);
    if (wanted.palette == 0) {
        return true;
    }
    *c = wanted;
    return fits(c);
}

// TILERELEASE, TILEZERO.
static bool clear(const struct instruction *i) {
    if (i->prefix == NO_PREFIX && i->reg == 0 && i->rm == 0) {
        memset(&unit, 0, sizeof unit);
        return true;
    }
    if (i->prefix != PREFIX_F2 || i->rm != 0 || !is_set(i->reg)) {
        return false;
    }
    memset(&unit.tiles[i->reg], 0, sizeof unit.tiles[i->reg]);
    return true;
}

static bool move(const struct instruction *i) {
    if (i->mod == REGISTERS_ONLY || i->rm != WITH_SIB || i->prefix == NO_PREFIX || !is_set(i->reg)) {
        return false;
    }
    struct tile *tile = &unit.tiles[i->reg];
    bool store = i->prefix == PREFIX_F3;
    size_t bytes = unit.configuration.row_bytes[i->reg];
    if (!store) {
        memset(tile, 0, sizeof *tile);
    }
    for (unsigned r = 0; r < unit.configuration.rows[i->reg]; r++) {
        uint8_t *row = operand(i->address + r * i->stride, bytes, store);
        memcpy(store ? row : tile->row[r], store ? tile->row[r] : row, bytes);
    }
    return true;
}

static float f32_from_bf16(uint16_t bf16) {
    uint32_t bits = (uint32_t)bf16 << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// The manual's loop, one row of sums at a time: the even and the odd elements of the pairs have separate sums, one fma per element.
__attribute__((target("fma"))) static void sum_bf16(const struct tile *a, const struct tile *b, unsigned row, unsigned k,
                                                    unsigned n, float *sums) {
    float even[WORDS] = {0}, odd[WORDS] = {0};
    const uint16_t(*pairs)[2] = (const void *)a->row[row];
    for (unsigned p = 0; p < k; p++) {
        const uint16_t(*columns)[2] = (const void *)b->row[p];
        for (unsigned c = 0; c < n; c++) {
            even[c] = __builtin_fmaf(f32_from_bf16(pairs[p][0]), f32_from_bf16(columns[c][0]), even[c]);
            odd[c] = __builtin_fmaf(f32_from_bf16(pairs[p][1]), f32_from_bf16(columns[c][1]), odd[c]);
        }
    }
    for (unsigned c = 0; c < n; c++) {
        float both = even[c] + odd[c];
        sums[c] += both;
    }
}

static void sum_int8(const struct tile *a, const struct tile *b, unsigned row, unsigned k, unsigned n, uint32_t *sums) {
    for (unsigned p = 0; p < k; p++) {
        for (unsigned c = 0; c < n; c++) {
            for (unsigned q = 0; q < 4; q++) {
                sums[c] += (uint32_t)((int8_t)a->row[row][4 * p + q] * (int8_t)b->row[p][4 * c + q]);
            }
        }
    }
}

// reg += rm * other: [m][n] += [m][k] * [k][n], k and n in 32-bit words.
static bool multiply(const struct instruction *i) {
    unsigned to = i->reg, left = i->rm, right = i->other;
    bool bf16 = i->opcode == OPCODE_BF16;
    if (i->mod != REGISTERS_ONLY || i->prefix != (bf16 ? PREFIX_F3 : PREFIX_F2) || !is_set(to) || !is_set(left) || !is_set(right) ||
        to == left || to == right || left == right) {
        return false;
    }
    const struct configuration *c = &unit.configuration;
    unsigned m = c->rows[to], n = c->row_bytes[to] / 4u, k = c->rows[right];
    if (c->rows[left] != m || c->row_bytes[left] != 4 * k || c->row_bytes[right] != c->row_bytes[to] || c->row_bytes[to] % 4) {
        return false;
    }
    struct tile *sums = &unit.tiles[to];
    unsigned before = _mm_getcsr();
    _mm_setcsr(MXCSR_FLUSHED);
    for (unsigned r = 0; r < m; r++) {
        if (bf16) {
            sum_bf16(&unit.tiles[left], &unit.tiles[right], r, k, n, (void *)sums->row[r]);
        } else {
            sum_int8(&unit.tiles[left], &unit.tiles[right], r, k, n, (void *)sums->row[r]);
        }
    }
    _mm_setcsr(before);
    return true;
}

// Bochs reports only the instruction's end. Finds the one length at which an instruction of this unit ends there.
static bool find(uint64_t end, struct instruction *found) {
    int count = 0;
    for (uint64_t length = SHORTEST; length <= LONGEST; length++) {
        struct instruction i;
        if (decode(end - length, &i) && i.next == end) {
            *found = i;
            count++;
        }
    }
    return count == 1;
}

bool tiles_execute(uint64_t end) {
    struct instruction i = {0};
    if (!find(end, &i)) {
        return false;
    }
    switch (i.opcode) {
    case OPCODE_CONFIGURE:
        return i.mod == REGISTERS_ONLY ? clear(&i) : configure(&i);
    case OPCODE_MOVE:
        return move(&i);
    default:
        return multiply(&i);
    }
}
