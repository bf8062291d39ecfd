// The errors of admin calls.
#ifndef EXPERTD_DAEMON_ADMIN_ADMIN_STATUS_H
#define EXPERTD_DAEMON_ADMIN_ADMIN_STATUS_H

#include "daemon/admin/admin_types.h"

void admin_fail(struct admin_call *call, err_t e); // ends the call with the thread's last error
// EXPERTD_ERR_LOADING before admin_ready, EXPERTD_ERR_UNIMPLEMENTED without a mover.
FALLIBLE admin_check_mover(const struct admin *admin);

#endif
