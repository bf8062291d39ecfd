// Answers: results and errors of requests, and statuses of calls. A unary call ends with its answer. The answers of a stream are
// written one at a time, in the order in which the requests were computed.
#ifndef EXPERTD_DAEMON_SERVE_SERVE_ANSWER_H
#define EXPERTD_DAEMON_SERVE_SERVE_ANSWER_H

#include "daemon/serve/serve_types.h"

void serve_answer(struct serve_request *r); // sends the result; the transport's `written` follows
// Sends r->error. True: `written` follows, or the end of r's stream. False: the status was copied, nothing of r is held.
bool serve_fail(struct serve_request *r);
void serve_next_answer(struct call *call); // starts writing a stream's next answer, unless one is being written

void serve_finish_call(struct call *call, const struct err_copy *error); // error NULL: OK. Once; later calls do nothing
void serve_fail_call(struct call *call, err_t e);                        // serve_finish_call with the thread's last error
void serve_count_call(const struct call *call, int grpc_code);           // in the metrics: one answer with this status

#endif
