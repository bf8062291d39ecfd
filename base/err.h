// Errors inside this tree: how a failure is recorded, passed on and copied. The type, its codes and the functions that read an
// error are public: expertd/base/err.h. The names below are this tree's own and are not installed.
//
// A fallible function is declared `FALLIBLE name(...)` and returns an err_t, which the caller must look at. The code decides the
// gRPC status and the exit code, each in one table.
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

// Records a failure in the calling thread and returns it. `field` (may be NULL) is the request field at fault, such as
// "routes.ids", for google.rpc.BadRequest. Messages longer than EXPERTD_ERR_MESSAGE_MAX are cut.
err_t err_record(enum expertd_err_code code, const char *field, const char *format, ...) __attribute__((format(printf, 3, 4)));

// Puts "context: " before the recorded message, on the way up. Returns e.
err_t err_context(err_t e, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The process exit code for an error that ends the program (sysexits.h's numbers).
int err_exit_code(enum expertd_err_code code);

// An error that outlives its thread's next failure, or moves to another thread.
struct err_copy {
    enum expertd_err_code code;
    char field[EXPERTD_ERR_FIELD_MAX];
    char message[EXPERTD_ERR_MESSAGE_MAX];
};
void err_save(err_t e, struct err_copy *out);
err_t err_restore(const struct err_copy *saved);

// The code is returned as written, so that an analyser sees in each caller that this path is a failure.
#define FAIL(code, ...) return ((void)err_record((code), NULL, __VA_ARGS__), (err_t){code})
#define FAIL_FIELD(code, field, ...) return ((void)err_record((code), (field), __VA_ARGS__), (err_t){code})

// Returns early with the error of `call`.
#define TRY(call)                                                                                                                  \
    do {                                                                                                                           \
        err_t try_err_ = (call);                                                                                                   \
        if (err_is(try_err_)) {                                                                                                    \
            return try_err_;                                                                                                       \
        }                                                                                                                          \
    } while (0)

// The same with context: TRY_IN(read_header(f), "%s", path).
#define TRY_IN(call, ...)                                                                                                          \
    do {                                                                                                                           \
        err_t try_err_ = (call);                                                                                                   \
        if (err_is(try_err_)) {                                                                                                    \
            return err_context(try_err_, __VA_ARGS__);                                                                             \
        }                                                                                                                          \
    } while (0)

// For functions with one exit: `e = f(); GOTO_OUT(e)` where resources are released at `out:`.
#define TRY_OUT(e, call)                                                                                                           \
    do {                                                                                                                           \
        (e) = (call);                                                                                                              \
        if (err_is(e)) {                                                                                                           \
            goto out;                                                                                                              \
        }                                                                                                                          \
    } while (0)

// A broken invariant of ours: on in release builds too. Prints file, line and condition, then aborts.
#define INVARIANT(condition) ((condition) ? (void)0 : invariant_failed(#condition, __FILE__, __LINE__))
__attribute__((noreturn)) void invariant_failed(const char *condition, const char *file, int line);

#endif
