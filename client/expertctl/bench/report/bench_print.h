// Prints a load's report: as a table for people, as JSON or CSV for programs.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_PRINT_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_REPORT_BENCH_PRINT_H

#include "client/expertctl/bench/report/bench_report.h"

// Prints a line for a finished step of --find-max on standard error.
void report_step_line(const struct bench_slo *slo, const struct report_step *step);

// To standard output. EXPERTD_ERR_NOMEM, EXPERTD_ERR_IO.
FALLIBLE report_print(const struct bench_report *report, bool json);
// To open files. EXPERTD_ERR_NOMEM, EXPERTD_ERR_IO.
FALLIBLE report_write_json(const struct bench_report *report, int fd);
FALLIBLE report_write_csv(const struct bench_report *report, int fd);

#endif
