// Decodes and checks a request.
#ifndef EXPERTD_DAEMON_SERVE_SERVE_INTAKE_H
#define EXPERTD_DAEMON_SERVE_SERVE_INTAKE_H

#include "daemon/serve/serve_types.h"

// Fills r's wire, layer, item, regions, output_bytes, deadline_ns and is_empty from r->message. Errors name the field at fault.
FALLIBLE serve_intake(struct serve_request *r);

#endif
