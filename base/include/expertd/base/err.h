// The error type of every fallible function: one code, one message, no hidden control flow.
//
// The code is the kind of failure. The message names the thing, the place, the cause and the mend. It is stored in the calling
// thread and stays valid until that thread's next failure. Nothing allocates, so running out of memory can be reported.
#ifndef EXPERTD_BASE_ERR_H
#define EXPERTD_BASE_ERR_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum expertd_err_code {
    EXPERTD_ERR_OK = 0,
    // of this process and its surroundings
    EXPERTD_ERR_USAGE,       // a wrong command line                               exit 64
    EXPERTD_ERR_CHECKPOINT,  // a file of the model is damaged, lies or is unknown exit 65
    EXPERTD_ERR_UNAVAILABLE, // a device, peer, address is not to be had           exit 69
    EXPERTD_ERR_INTERNAL,    // ours                                               exit 70
    EXPERTD_ERR_CONFIG,      // a bad configuration                                exit 78
    EXPERTD_ERR_IO,          // a system call failed
    EXPERTD_ERR_NOMEM,       // memory could not be had
    // of a request: the reasons of google.rpc.ErrorInfo, in the order of the interface's documentation
    EXPERTD_ERR_MALFORMED, // the bytes are no such message
    EXPERTD_ERR_MODEL_UNKNOWN,
    EXPERTD_ERR_LAYER_UNKNOWN,
    EXPERTD_ERR_REGION_UNKNOWN,
    EXPERTD_ERR_SHAPE_MISMATCH,
    EXPERTD_ERR_DTYPE_UNSUPPORTED,
    EXPERTD_ERR_EXPERT_OUT_OF_RANGE,
    EXPERTD_ERR_UNKNOWN_FIELD,
    EXPERTD_ERR_TENSOR_BYTES,
    EXPERTD_ERR_INVALID, // any other argument that does not fit: of our own functions and the admin interface, never of expertd.v1
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

// A struct, so that an error is never mistaken for an integer or a bool.
typedef struct expertd_err {
    enum expertd_err_code code;
} expertd_err_t;

// The return type of a fallible function: the compiler warns where the result is ignored.
#define EXPERTD_FALLIBLE __attribute__((warn_unused_result)) expertd_err_t

static inline bool expertd_err_is(expertd_err_t e) {
    return e.code != EXPERTD_ERR_OK;
}

// Bounds of message and field, the terminating NUL counted.
enum { EXPERTD_ERR_MESSAGE_MAX = 1024, EXPERTD_ERR_FIELD_MAX = 128 };

// The calling thread's last message, and the name of the argument or request field at fault ("" where there is none). Valid until
// the thread's next failure, never NULL.
const char *expertd_err_message(void);
const char *expertd_err_field(void);

// "SHAPE_MISMATCH" and the like: stable names that clients match on. Never NULL.
const char *expertd_err_name(enum expertd_err_code code);

#ifdef __cplusplus
}
#endif

#endif
