#include "daemon/request/request.h"

void request_core_init(struct request_core *core) {
    *core = (struct request_core){.state = REQUEST_SLOT};
}

static enum request_action release_if_unused(struct request_core *core) {
    if (core->computing || core->writing || core->withdrawing || core->released) {
        return REQUEST_DO_NOTHING;
    }
    core->released = true;
    return REQUEST_DO_RELEASE;
}

// Ends the request with an error, which is sent unless the peer is gone.
static enum request_action fail(struct request_core *core, enum expertd_err_code error) {
    core->error = error;
    if (core->closed) {
        core->state = REQUEST_FAILED;
        return release_if_unused(core);
    }
    core->state = REQUEST_COMMITTING;
    core->writing = true;
    return REQUEST_DO_FAIL;
}

static enum request_action withdraw(struct request_core *core, enum expertd_err_code error) {
    core->error = error;
    core->withdrawing = true;
    return REQUEST_DO_WITHDRAW;
}

static enum request_action on_computed(struct request_core *core, enum expertd_err_code error) {
    core->computing = false;
    core->withdrawing = false; // too late
    if (core->state != REQUEST_BATCHED && core->state != REQUEST_COMPUTING) {
        return core->state == REQUEST_COMMITTING ? REQUEST_DO_NOTHING : release_if_unused(core);
    }
    if (error != EXPERTD_ERR_OK || core->closed) {
        return fail(core, core->closed ? EXPERTD_ERR_CANCELLED : error);
    }
    core->error = EXPERTD_ERR_OK;
    core->state = REQUEST_COMMITTING;
    core->writing = true;
    return REQUEST_DO_ANSWER;
}

// error: EXPERTD_ERR_CANCELLED (the peer is gone) or EXPERTD_ERR_DEADLINE.
static enum request_action on_abandoned(struct request_core *core, enum expertd_err_code error) {
    switch (core->state) {
    case REQUEST_SLOT:
    case REQUEST_READING:
    case REQUEST_CHECKING:
        return fail(core, error);
    case REQUEST_BATCHED:
        return core->withdrawing ? REQUEST_DO_NOTHING : withdraw(core, error);
    case REQUEST_COMPUTING:
        return fail(core, error);
    default:
        return REQUEST_DO_NOTHING;
    }
}

static enum request_action on_written(struct request_core *core) {
    if (core->state != REQUEST_COMMITTING) {
        return REQUEST_DO_NOTHING;
    }
    core->writing = false;
    core->state = core->error == EXPERTD_ERR_OK ? REQUEST_SENT : REQUEST_FAILED;
    return release_if_unused(core);
}

// The outcome of a withdrawal.
static enum request_action on_withdrawal(struct request_core *core, bool withdrawn) {
    if (!core->withdrawing) {
        return REQUEST_DO_NOTHING;
    }
    core->withdrawing = false;
    if (withdrawn) {
        core->computing = false;
    } else {
        core->state = REQUEST_COMPUTING;
    }
    return fail(core, core->error);
}

enum request_action request_step(struct request_core *core, const struct request_event *event) {
    switch (event->kind) {
    case REQUEST_SLOT_GRANTED:
        if (core->state != REQUEST_SLOT) {
            return REQUEST_DO_NOTHING;
        }
        core->state = REQUEST_READING;
        return REQUEST_DO_READ;
    case REQUEST_MESSAGE:
        if (core->state != REQUEST_READING) {
            return REQUEST_DO_NOTHING;
        }
        core->state = REQUEST_CHECKING;
        return REQUEST_DO_ADMIT;
    case REQUEST_REFUSED:
        return core->state <= REQUEST_CHECKING ? fail(core, event->error) : REQUEST_DO_NOTHING;
    case REQUEST_ADMITTED:
        INVARIANT(core->state == REQUEST_CHECKING);
        core->state = REQUEST_BATCHED;
        core->computing = true;
        return REQUEST_DO_COMPUTE;
    case REQUEST_STARTED:
        return on_withdrawal(core, false);
    case REQUEST_WITHDRAWN:
        return on_withdrawal(core, true);
    case REQUEST_COMPUTED:
        return on_computed(core, event->error);
    case REQUEST_EXPIRED:
        return on_abandoned(core, EXPERTD_ERR_DEADLINE);
    case REQUEST_WRITTEN:
        return on_written(core);
    case REQUEST_CLOSED:
        core->closed = true;
        return on_abandoned(core, EXPERTD_ERR_CANCELLED);
    default:
        INVARIANT(!"a request event of this kind");
    }
}
