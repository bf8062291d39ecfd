#include "client/expertctl/suggest.h"

#include <string.h>

enum { WORD_MAX = 40 };

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

// Damerau's distance with adjacent swaps (optimal string alignment), three rows of its table. Both words are below WORD_MAX.
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
            row[j] = least(least(above[j], row[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                row[j] = least(row[j], above2[j - 2] + 1);
            }
        }
    }
    return rows[a_length % 3][b_length];
}

const char *suggest_word(const char *word, const char *const *words, size_t count) {
    size_t length = strlen(word);
    if (length == 0 || length > WORD_MAX) {
        return NULL;
    }
    const char *nearest = NULL;
    size_t best = length / 3 + 1;
    for (size_t i = 0; i < count; i++) {
        size_t other = strlen(words[i]);
        size_t distance = other <= WORD_MAX ? edits(word, length, words[i], other) : best + 1;
        if (distance < best + (nearest == NULL)) {
            nearest = words[i];
            best = distance;
        }
    }
    return nearest;
}
