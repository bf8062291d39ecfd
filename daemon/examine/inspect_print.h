// Prints an inspection on standard output. Text that may come from a hostile file is escaped. Private to daemon/examine/.
#ifndef EXPERTD_DAEMON_EXAMINE_INSPECT_PRINT_H
#define EXPERTD_DAEMON_EXAMINE_INSPECT_PRINT_H

#include "expert/model/model_inspect.h"

FALLIBLE inspect_print_table(const struct inspection *inspection); // layers that are equal and consecutive are one row
FALLIBLE inspect_print_json(const struct inspection *inspection);  // one object; EXPERTD_ERR_NOMEM
void inspect_print_error_json(err_t e);                            // the calling thread's error, as one object

#endif
