// The architecture table: one row for each served architecture, and one for each that is refused by name. Constant data.
// Private to expert/architecture/.
#ifndef EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_TABLE_H
#define EXPERTD_EXPERT_ARCHITECTURE_ARCHITECTURE_TABLE_H

#include <stddef.h>

#include "expert/architecture/architecture_row.h"

// Served: architecture_table.c.
extern const struct architecture *const ARCHITECTURES;
extern const size_t ARCHITECTURE_COUNT;

// Refused: architecture_refused.c. Only model_types, classes and refusal are set.
extern const struct architecture *const ARCHITECTURES_REFUSED;
extern const size_t ARCHITECTURE_REFUSED_COUNT;

#endif
