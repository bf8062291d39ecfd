// Errors: one type, one message, no hidden control flow.
//
// A fallible function is declared `FALLIBLE name(...)` and returns an err_t, which must be looked at. The code says what kind of
// failure it is (it decides the gRPC status and the exit code, each in one table); the message says what, where and how to mend
// it, and lies in the calling thread until that thread's next failure. No allocation, so running out of memory can be reported.
#ifndef EXPERTD_BASE_ERR_H
#define EXPERTD_BASE_ERR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum err_code {
    ERR_OK = 0,
    // of this process and its surroundings
    ERR_USAGE,       // a wrong command line                               exit 64
    ERR_CHECKPOINT,  // a file of the model is damaged, lies or is unknown exit 65
    ERR_UNAVAILABLE, // a device, peer, address is not to be had           exit 69
    ERR_INTERNAL,    // ours                                               exit 70
    ERR_CONFIG,      // a bad configuration                                exit 78
    ERR_IO,          // a system call failed
    ERR_NOMEM,       // memory could not be had
    // of a request: the reasons of google.rpc.ErrorInfo, in the order of the interface's documentation
    ERR_MALFORMED, // the bytes are no such message
    ERR_MODEL_UNKNOWN,
    ERR_LAYER_UNKNOWN,
    ERR_REGION_UNKNOWN,
    ERR_SHAPE_MISMATCH,
    ERR_DTYPE_UNSUPPORTED,
    ERR_EXPERT_OUT_OF_RANGE,
    ERR_UNKNOWN_FIELD,
    ERR_TENSOR_BYTES,
    ERR_INVALID, // any other argument that does not fit: of our own functions and the admin interface, never of expertd.v1
    ERR_WEIGHTS_CHANGED,
    ERR_NO_ROUTER,
    ERR_NO_SHARED_EXPERTS,
    ERR_QUEUE_FULL,
    ERR_TOO_LARGE,
    ERR_DRAINING,
    ERR_SHARD_LOST,
    ERR_LOADING,
    ERR_DEADLINE,
    ERR_CANCELLED,
    ERR_PERMISSION,
    ERR_UNIMPLEMENTED,
    ERR_CODE_COUNT
};

// A struct, so that it is never taken for a number or a bool.
typedef struct err {
    enum err_code code;
} err_t;

#define FALLIBLE __attribute__((warn_unused_result)) err_t
#define OK ((err_t){ERR_OK})

static inline bool err_is(err_t e) {
    return e.code != ERR_OK;
}

enum { ERR_MESSAGE_MAX = 1024, ERR_FIELD_MAX = 128 };

// Records a failure in the calling thread and returns it. `field` (may be NULL) is the request field at fault, such as
// "routes.ids", for google.rpc.BadRequest. Messages longer than ERR_MESSAGE_MAX are cut.
err_t err_record(enum err_code code, const char *field, const char *format, ...) __attribute__((format(printf, 3, 4)));

// Puts "context: " before the recorded message, on the way up. Returns e.
err_t err_context(err_t e, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The calling thread's last message and field; valid until its next failure, never NULL.
const char *err_message(void);
const char *err_field(void);

// "SHAPE_MISMATCH" and the like: stable names that clients match on. Never NULL.
const char *err_name(enum err_code code);

// The process exit code for an error that ends the program (sysexits.h's numbers).
int err_exit_code(enum err_code code);

// An error that outlives its thread's next failure, or moves to another thread.
struct err_copy {
    enum err_code code;
    char field[ERR_FIELD_MAX];
    char message[ERR_MESSAGE_MAX];
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
