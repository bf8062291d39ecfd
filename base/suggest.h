// Finds the known word that an unknown word probably means. Pure.
#ifndef EXPERTD_BASE_SUGGEST_H
#define EXPERTD_BASE_SUGGEST_H

#include <stddef.h>

// Returns the one of `count` words with the smallest edit distance to the `length` bytes at `word`. Edits: insert, delete, replace,
// swap neighbours. Case, leading dashes and dash versus underscore do not count. A prefix of a word ("deepseek") has distance 0.
// Among equal distances, the word of the most similar length is returned, then the first. NULL: all distances exceed half of the
// length (at least one edit is allowed).
const char *suggest_word(const char *word, size_t length, const char *const *words, size_t count);

#endif
