// Finds the local Hugging Face cache by the variables that its tools read. Reads no file, except the user database for "~".
#ifndef EXPERTD_DAEMON_CONFIG_HUB_CACHE_H
#define EXPERTD_DAEMON_CONFIG_HUB_CACHE_H

#include <stdbool.h>
#include <stddef.h>

// The cache's folder and the variable that determined it; false: no variable is set, or the path is too long. In values, "~",
// "~USER", $NAME and ${NAME} are expanded as Python's os.path does it: unknown names stay as they are.
bool hub_cache_find(char *const *environment, char *path, size_t path_bytes, const char **variable);

#endif
