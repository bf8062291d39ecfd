#include "daemon/config/options_conflict.h"

#include <string.h>

enum expertd_err_code options_conflict_code(const struct options *options, enum options_key a, enum options_key b) {
    bool flag = strncmp(options->origins[a], "flag", 4) == 0 || strncmp(options->origins[b], "flag", 4) == 0;
    return flag ? EXPERTD_ERR_USAGE : EXPERTD_ERR_CONFIG;
}
