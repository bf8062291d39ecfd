// The error type of every fallible function: one code, one message, no hidden control flow.
//
// The code is the kind of failure. The message names the thing, the place, the cause and the remedy. It is stored in the calling
// thread and stays valid until that thread's next failure. Errors are recorded without allocation, so out of memory can be
// reported.
#ifndef EXPERTD_BASE_ERR_H
#define EXPERTD_BASE_ERR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum expertd_err_code {
    EXPERTD_ERR_OK = 0,
    // errors of this process and its environment, with expertd's exit code
    EXPERTD_ERR_USAGE,       // wrong command line                                               64
    EXPERTD_ERR_CHECKPOINT,  // a model's file is damaged, inconsistent or of an unknown format  65
    EXPERTD_ERR_UNAVAILABLE, // a device, peer or address is not available                       69
    EXPERTD_ERR_INTERNAL,    // a defect of this program                                         70
    EXPERTD_ERR_CONFIG,      // bad configuration                                                78
    EXPERTD_ERR_IO,          // a system call failed
    EXPERTD_ERR_NOMEM,       // out of memory
    // errors of a request: the reasons of google.rpc.ErrorInfo, in the order of the .proto file's documentation
    EXPERTD_ERR_MALFORMED, // the bytes do not parse as the message
    EXPERTD_ERR_MODEL_UNKNOWN,
    EXPERTD_ERR_LAYER_UNKNOWN,
    EXPERTD_ERR_REGION_UNKNOWN,
    EXPERTD_ERR_SHAPE_MISMATCH,
    EXPERTD_ERR_DTYPE_UNSUPPORTED,
    EXPERTD_ERR_EXPERT_OUT_OF_RANGE,
    EXPERTD_ERR_UNKNOWN_FIELD,
    EXPERTD_ERR_TENSOR_BYTES,
    EXPERTD_ERR_INVALID, // any other invalid argument, of this library's functions and the admin interface; never in expertd.v1
    EXPERTD_ERR_WEIGHTS_CHANGED,
    EXPERTD_ERR_NO_ROUTER,
    EXPERTD_ERR_NO_SHARED_EXPERTS,
    EXPERTD_ERR_QUEUE_FULL,
    EXPERTD_ERR_TOO_LARGE,
    EXPERTD_ERR_DRAINING,
    EXPERTD_ERR_SHARD_LOST,
    EXPERTD_ERR_LOADING,
    EXPERTD_ERR_DEADLINE,
    EXPERTD_ERR_CANCELLED,
    EXPERTD_ERR_PERMISSION,
    EXPERTD_ERR_UNIMPLEMENTED,
    EXPERTD_ERR_CODE_COUNT
};

// A struct, so that the compiler does not accept an integer or bool as an error.
typedef struct expertd_err {
    enum expertd_err_code code;
} expertd_err_t;

// The return type of a fallible function: the compiler warns where the result is ignored.
#define EXPERTD_FALLIBLE __attribute__((warn_unused_result)) expertd_err_t

static inline bool expertd_err_is(expertd_err_t e) {
    return e.code != EXPERTD_ERR_OK;
}

// Returns early with the error of `call`, in a function that returns EXPERTD_FALLIBLE.
#define EXPERTD_TRY(call)                                                                                                          \
    do {                                                                                                                           \
        expertd_err_t expertd_try_err_ = (call);                                                                                   \
        if (expertd_err_is(expertd_try_err_)) {                                                                                    \
            return expertd_try_err_;                                                                                               \
        }                                                                                                                          \
    } while (0)

// Maximum bytes of a message and of a field name, including the terminating NUL.
enum { EXPERTD_ERR_MESSAGE_MAX = 1024, EXPERTD_ERR_FIELD_MAX = 128 };

// The calling thread's last message, and the name of the argument or request field at fault ("" where there is none). Never NULL;
// valid until the thread's next failure.
const char *expertd_err_message(void);
const char *expertd_err_field(void);

// "SHAPE_MISMATCH" and the like: stable names that clients match on. Never NULL.
const char *expertd_err_name(enum expertd_err_code code);

#ifdef __cplusplus
}
#endif

#endif
