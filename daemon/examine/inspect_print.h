// Prints an inspection on standard output. Text that may come from a hostile file is escaped. Private to daemon/examine/.
#ifndef EXPERTD_DAEMON_EXAMINE_INSPECT_PRINT_H
#define EXPERTD_DAEMON_EXAMINE_INSPECT_PRINT_H

#include "daemon/examine/inspect_devices.h"
#include "expert/loader/model_inspect.h"

// Layers that are equal and consecutive are one row.
FALLIBLE inspect_print_table(const struct inspection *inspection, const struct inspected_devices *devices);
// One object. EXPERTD_ERR_NOMEM.
FALLIBLE inspect_print_json(const struct inspection *inspection, const struct inspected_devices *devices);
void inspect_print_error_json(err_t e); // the calling thread's error, as one object

#endif
