// Turns SIGBUS on a mapped file into an error message and exit code 65. The kernel sends SIGBUS when a page is read that the file
// no longer has, or that the disk cannot deliver. The signal handler finds the file's name in a registry of mapped ranges.
// Ranges are added and removed from any thread; the handler takes no lock and allocates nothing.
#ifndef EXPERTD_BASE_MAPPED_H
#define EXPERTD_BASE_MAPPED_H

#include <stddef.h>

#include "base/err.h"

enum { MAPPED_RANGES_MAX = 8192, MAPPED_EXIT_CODE = 65 };

// Registers a range. `path` is borrowed until mapped_remove. Ranges beyond MAPPED_RANGES_MAX are ignored; there SIGBUS has its
// default effect.
void mapped_add(const void *start, size_t bytes, const char *path);
void mapped_remove(const void *start); // call before unmapping; ignores a range that was not added

// Installs the handler. main() calls it once, before it opens the first file. EXPERTD_ERR_INTERNAL.
FALLIBLE mapped_install_handler(void);

#endif
