// The error code for two options that contradict each other.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_CONFLICT_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_CONFLICT_H

#include "base/err.h"
#include "daemon/config/options_fields.h"
#include "daemon/config/options_table.h"

// A usage error if a flag set one of them, otherwise a configuration error.
enum expertd_err_code options_conflict_code(const struct options *options, enum options_key a, enum options_key b);

bool options_is_shard(const struct options *options); // --role shard

// EXPERTD_ERR_USAGE or EXPERTD_ERR_CONFIG: an option that a shard cannot follow.
FALLIBLE options_check_role(const struct options *options);

#endif
