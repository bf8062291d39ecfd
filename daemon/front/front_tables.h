// Puts the membership's tables in force: a thread makes a placement of each, over the blocks of this process, and switches to it
// when no batch uses the one before. Private to daemon/front/. The caller of each function holds the mutex, unless stated
// otherwise.
#ifndef EXPERTD_DAEMON_FRONT_FRONT_TABLES_H
#define EXPERTD_DAEMON_FRONT_FRONT_TABLES_H

#include "daemon/front/front_state.h"

FALLIBLE front_tables_create(struct front *front); // EXPERTD_ERR_NOMEM
void front_tables_destroy(struct front *front);    // legal after a failed front_tables_create
FALLIBLE front_tables_start(struct front *front);  // without the mutex. EXPERTD_ERR_UNAVAILABLE: no thread
void front_tables_stop(struct front *front);       // without the mutex. Joins the thread; no batch is computed

// MEMBERSHIP_USE.
void front_tables_want(struct front *front, uint32_t layer, uint64_t epoch);
// Sets is_complete once every layer has its table in force and each expert a live holder.
void front_tables_check(struct front *front);

#endif
