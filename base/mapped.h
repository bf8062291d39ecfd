// A file can change under its mapping: the kernel then sends SIGBUS to whoever touches the page. This registry knows which file
// each mapped range belongs to, so that main()'s handler can name it and end with exit 65 instead of a bare crash.
// Ranges are added and removed from any thread; the handler takes no lock and allocates nothing.
#ifndef EXPERTD_BASE_MAPPED_H
#define EXPERTD_BASE_MAPPED_H

#include <stddef.h>

#include "base/err.h"

enum { MAPPED_RANGES_MAX = 8192, MAPPED_EXIT_CODE = 65 };

// Names a range. `path` is borrowed until mapped_remove. Past MAPPED_RANGES_MAX ranges it does nothing: a fault there is then an
// ordinary SIGBUS.
void mapped_add(const void *start, size_t bytes, const char *path);
void mapped_remove(const void *start); // before the range is unmapped; of a range that was not added it does nothing

// main() calls it once, before the first file is opened. EXPERTD_ERR_INTERNAL where the handler cannot be set.
FALLIBLE mapped_install_handler(void);

#endif
