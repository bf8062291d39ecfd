// Records, propagates and copies errors inside this source tree. The error type, its codes and the functions that read an error are
// public: expertd/base/err.h. This header is not installed.
//
// A function that can fail is declared `FALLIBLE name(...)` and returns an err_t, which the caller must check. The error code
// determines the exit code (err.c) and the gRPC status (proto/control).
#ifndef EXPERTD_BASE_INTERNAL_ERR_H
#define EXPERTD_BASE_INTERNAL_ERR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/err.h"

typedef expertd_err_t err_t;

#define FALLIBLE EXPERTD_FALLIBLE
#define OK ((err_t){EXPERTD_ERR_OK})

static inline bool err_is(err_t e) {
    return expertd_err_is(e);
}

// Records a failure in the calling thread and returns it. `field` is the request field at fault, such as "routes.ids", for
// google.rpc.BadRequest; NULL: none. A message longer than EXPERTD_ERR_MESSAGE_MAX is truncated.
err_t err_record(enum expertd_err_code code, const char *field, const char *format, ...) __attribute__((format(printf, 3, 4)));

// Prefixes the recorded message with "context: " if `e` is an error. Returns e.
err_t err_context(err_t e, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The exit code of a program that ends with this error (values of sysexits.h).
int err_exit_code(enum expertd_err_code code);

// A copy of an error, which outlives the thread's next failure and can be passed to another thread.
struct err_copy {
    enum expertd_err_code code;
    char field[EXPERTD_ERR_FIELD_MAX];
    char message[EXPERTD_ERR_MESSAGE_MAX];
};
void err_save(err_t e, struct err_copy *out);
err_t err_restore(const struct err_copy *saved);

// Record a failure and return it. The code is returned as a literal, so that a static analyser sees in each caller that this path
// fails.
#define FAIL(code, ...) return ((void)err_record((code), NULL, __VA_ARGS__), (err_t){code})
#define FAIL_FIELD(code, field, ...) return ((void)err_record((code), (field), __VA_ARGS__), (err_t){code})

// Returns early with the error of `call`.
#define TRY(call) EXPERTD_TRY(call)

// The same with context: TRY_IN(read_header(f), "%s", path).
#define TRY_IN(call, ...)                                                                                                          \
    do {                                                                                                                           \
        err_t try_err_ = (call);                                                                                                   \
        if (err_is(try_err_)) {                                                                                                    \
            return err_context(try_err_, __VA_ARGS__);                                                                             \
        }                                                                                                                          \
    } while (0)

// For functions that release resources at the label `out`: stores the error of `call` in `e` and goes to `out` if it failed.
#define TRY_OUT(e, call)                                                                                                           \
    do {                                                                                                                           \
        (e) = (call);                                                                                                              \
        if (err_is(e)) {                                                                                                           \
            goto out;                                                                                                              \
        }                                                                                                                          \
    } while (0)

// An assertion that is also active in release builds. Prints file, line and condition, then aborts.
#define INVARIANT(condition) ((condition) ? (void)0 : invariant_failed(#condition, __FILE__, __LINE__))
__attribute__((noreturn)) void invariant_failed(const char *condition, const char *file, int line);

#endif
