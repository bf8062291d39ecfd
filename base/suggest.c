#include "base/suggest.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

enum {
    WORD_MAX = 64,  // longer words get no suggestion
    PREFIX_MIN = 3, // shorter prefixes are ambiguous
};

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t difference(size_t a, size_t b) {
    return a < b ? b - a : a - b;
}

static char normalised(char c) {
    return c == '-' ? '_' : (char)tolower((unsigned char)c);
}

static bool same(char a, char b) {
    return normalised(a) == normalised(b);
}

// Damerau-Levenshtein distance (optimal string alignment), with three rows of the table. Both words have at most WORD_MAX bytes.
static size_t edits(const char *a, size_t a_length, const char *b, size_t b_length) {
    size_t rows[3][WORD_MAX + 1];
    for (size_t j = 0; j <= b_length; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            row[j] = least(least(above[j], row[j - 1]) + 1, above[j - 1] + !same(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1])) {
                row[j] = least(row[j], above2[j - 2] + 1);
            }
        }
    }
    return rows[a_length % 3][b_length];
}

static bool begins_with(const char *word, const char *prefix, size_t length) {
    size_t i = 0;
    while (i < length && word[i] && same(word[i], prefix[i])) {
        i++;
    }
    return i == length && length >= PREFIX_MIN;
}

const char *suggest_word(const char *word, size_t length, const char *const *words, size_t count) {
    for (; length > 0 && *word == '-'; length--) {
        word++;
    }
    if (length == 0 || length > WORD_MAX) {
        return NULL;
    }
    const char *nearest = NULL;
    size_t best = length > 1 ? length / 2 : 1, best_length = 0;
    for (size_t i = 0; i < count; i++) {
        const char *other = words[i] + strspn(words[i], "-");
        size_t other_length = strlen(other);
        if (other_length > WORD_MAX) {
            continue;
        }
        size_t distance = begins_with(other, word, length) ? 0 : edits(word, length, other, other_length);
        if (distance < best ||
            (distance == best && (!nearest || difference(other_length, length) < difference(best_length, length)))) {
            nearest = words[i];
            best = distance;
            best_length = other_length;
        }
    }
    return nearest;
}
