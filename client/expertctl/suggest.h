// The word that was probably meant. Pure.
#ifndef EXPERTD_CLIENT_EXPERTCTL_SUGGEST_H
#define EXPERTD_CLIENT_EXPERTCTL_SUGGEST_H

#include <stddef.h>

// The nearest of `count` words by edits (insert, drop, replace, swap neighbours), the first among equals; NULL where none is near
// enough to be worth naming: within a third of the word's length, and at least one edit.
const char *suggest_word(const char *word, const char *const *words, size_t count);

#endif
