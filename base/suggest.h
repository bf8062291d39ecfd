// The word that was probably meant by one that nothing is called. Pure.
#ifndef EXPERTD_BASE_SUGGEST_H
#define EXPERTD_BASE_SUGGEST_H

#include <stddef.h>

// The nearest of `count` words to the `length` bytes at `word`, by edits: insert, drop, replace, swap neighbours. Case, the kind of
// dash and dashes in front cost nothing, and what was cut short ("deepseek") is as near as it gets. Of two as near the one of like
// length, for a typo seldom drops a word; then the first. NULL where none is near enough to be worth naming: at least one edit is
// allowed, and half of the word's length.
const char *suggest_word(const char *word, size_t length, const char *const *words, size_t count);

#endif
