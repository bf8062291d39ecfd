// Prints the findings of a load: for people as a table, for programs as JSON or CSV.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_PRINT_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_PRINT_H

#include "client/expertctl/bench/report/bench_report.h"

// A line of --find-max while it goes on, on standard error.
void report_step_line(const struct bench_slo *slo, const struct report_step *step);

// To standard output. EXPERTD_ERR_NOMEM, EXPERTD_ERR_IO.
FALLIBLE report_print(const struct bench_report *report, bool json);
// To files that are open. EXPERTD_ERR_NOMEM, EXPERTD_ERR_IO.
FALLIBLE report_write_json(const struct bench_report *report, int fd);
FALLIBLE report_write_csv(const struct bench_report *report, int fd);

#endif
