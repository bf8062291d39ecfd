// Compares two saved reports of the same load.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_SAVED_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_SAVED_H

#include <stdbool.h>

#include "base/err.h"
#include "client/expertctl/bench/report/bench_compare.h"

// Reads two saved reports and prints the comparison. EXPERTD_ERR_IO or EXPERTD_ERR_INVALID names the file; EXPERTD_ERR_INVALID also
// if the two loads differ.
FALLIBLE report_compare(const char *const paths[2], double tolerance, bool json, enum compare_outcome *out);

#endif
