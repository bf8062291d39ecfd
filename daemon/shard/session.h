// Sessions: their list, their references, their end. The caller holds the service's mutex, except where noted.
#ifndef EXPERTD_DAEMON_SHARD_SESSION_H
#define EXPERTD_DAEMON_SHARD_SESSION_H

#include "daemon/shard/shard_types.h"

// A session of this front with a fresh token, not yet connected in the holder. One reference. Without the mutex. EXPERTD_ERR_NOMEM;
// EXPERTD_ERR_UNAVAILABLE: too many ended ones have not been freed yet.
FALLIBLE session_create(struct shard_service *service, uint64_t front, const char *version, struct shard_session **out);
// Drops a reference. True: it was the last one, and the caller calls session_free without the mutex.
bool session_drop(struct shard_session *session);
void session_free(struct shard_session *session); // without the mutex

// Ends the session: its front is disconnected in the holder, and its threads end its streams with the thread's last error `e`. The
// first end counts.
void session_end(struct shard_session *session, err_t e);

// The session with this token, in a time that does not depend on the token's bytes. NULL: none.
struct shard_session *session_find(struct shard_service *service, const uint8_t token[SHARD_TOKEN_LENGTH]);

void session_wake_threads(struct shard_service *service); // every stream's thread ticks soon; with or without the mutex

// Carries out the holder's actions: call after each call of the holder. Wakes the loader threads and the streams' threads.
void session_holder_changed(struct shard_service *service);

#endif
