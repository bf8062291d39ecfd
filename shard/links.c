#include "shard/links.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "shard/aborter.h"

enum { PROBE_NS = 50 * NS_PER_MS }; // for probing an idle device, which answers far faster

struct links {
    struct links_options options;
    const struct expertd_device_links *calls;
    struct device_link *all[EXPERTD_DEVICES_MAX]; // NULL: aborted, or not joined yet
    struct aborter *aborter;                      // NULL for a single device, which has no links
    bool abort_is_late; // an abort during this batch did not end in time; it may still end if no device delays it
    bool joined;
    _Atomic uint64_t rebuilds;
    _Atomic bool lost;
    bool overdue;                              // a single device did not end its work in time; the work cannot be aborted
    char why[EXPERTD_DEVICE_MESSAGE_MAX + 64]; // the cause of `lost`; used by the batch's thread only
};

// NCCL 2.30 with its defaults. OWN_MIB is a guess. PEER_MIB: up to 32 channels for each peer, with one buffer per protocol,
// together 9.2 MiB per channel.
enum { OWN_MIB = 256, PEER_MIB = 304 };

size_t links_bytes(const struct expertd_devices *devices, uint32_t device) {
    size_t peers = device == 0 ? devices->count - 1 : 1; // every device exchanges rows with the first one only
    return devices->count > 1 ? (OWN_MIB + peers * PEER_MIB) << 20 : 0;
}

static uint32_t count_of(const struct links *links) {
    return links->options.devices->count;
}

static FALLIBLE check(const struct links *links, uint32_t device, enum expertd_device_code code,
                      const struct expertd_device_error *error) {
    return expertd_devices_check(links->options.devices, device, code, error);
}

// Aborts every link, since the peers of a failed link would wait for it. If the abort does not end in time, a device probably
// delays it; `lost` then makes the next call search for this device (find_lost). Keeps the current error message.
static err_t give_up(struct links *links, err_t e) {
    links->joined = false;
    snprintf(links->why, sizeof links->why, "%.*s", (int)sizeof links->why - 1, expertd_err_message());
    bool ended = aborter_abort(links->aborter, links->all, count_of(links), links->options.timeout_ns);
    memset(links->all, 0, sizeof links->all);
    if (!ended) {
        links->abort_is_late = true;
        links->options.devices->stuck = true;
        atomic_store(&links->lost, true);
    }
    return e;
}

// ---- joining

// Polls until no operation is in progress in any link.
static FALLIBLE settle_links(struct links *links, int64_t timeout_ns, const char *action) {
    int64_t started_ns = clock_now_ns();
    for (uint32_t i = 0; i < count_of(links); i++) {
        int busy = 1;
        for (;;) {
            struct expertd_device_error error;
            int64_t asked_ns = clock_now_ns(); // before the poll, so that a delay of this thread does not count
            TRY(check(links, i, links->calls->settled(links->all[i], &busy, &error), &error));
            if (!busy) {
                break;
            }
            if (asked_ns - started_ns > timeout_ns) {
                FAIL(EXPERTD_ERR_SHARD_LOST, "%s device %u: %s did not end within %lld ms", links->options.devices->table->kind,
                     links->options.devices->numbers[i], action, (long long)(timeout_ns / NS_PER_MS));
            }
            expertd_devices_pause(started_ns);
        }
    }
    return OK;
}

static FALLIBLE start_joining(struct links *links) {
    struct expertd_device_error error;
    struct device_link_id id;
    TRY(check(links, 0, links->calls->make_id(&id, &error), &error));
    TRY(check(links, 0, links->calls->begin(&error), &error));
    err_t e = OK;
    for (uint32_t i = 0; i < count_of(links) && !err_is(e); i++) {
        struct expertd_device *device = links->options.devices->all[i];
        e = check(links, i, links->calls->join(device, &id, i, count_of(links), &links->all[i], &error), &error);
    }
    enum expertd_device_code closed = links->calls->end(&error);
    return err_is(e) ? e : check(links, 0, closed, &error);
}

static FALLIBLE join(struct links *links) {
    err_t e = start_joining(links);
    if (!err_is(e)) {
        e = settle_links(links, links->options.join_timeout_ns, "joining the other ranks");
    }
    if (err_is(e)) {
        return give_up(links, e);
    }
    links->joined = true;
    return OK;
}

FALLIBLE links_create(const struct links_options *options, struct links **out) {
    *out = NULL;
    struct links *links = calloc(1, sizeof *links);
    struct expertd_device_error error;
    char version[DEVICE_LINKS_TEXT_MAX];
    if (!links) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the links between devices");
    }
    links->options = *options;
    links->calls = options->devices->table->links;
    err_t e = OK;
    if (options->devices->count > 1) {
        if (links->calls->load(version, &error) != EXPERTD_DEVICE_OK) {
            e = err_record(EXPERTD_ERR_UNAVAILABLE, NULL,
                           "%u devices exchange rows over NCCL. %s; or serve from one device (--device %s:%u)",
                           options->devices->count, error.message, options->devices->table->kind, options->devices->numbers[0]);
            goto out;
        }
        TRY_OUT(e, aborter_create(links->calls, &links->aborter));
        e = join(links);
        if (err_is(e)) { // every cause is reported as unavailable
            e = err_context((err_t){EXPERTD_ERR_UNAVAILABLE}, "the communicator of %u devices", options->devices->count);
            goto out;
        }
    }
    *out = links;
    return OK;
out:
    aborter_destroy(links->aborter);
    free(links);
    return e;
}

static FALLIBLE leave(struct links *links) {
    struct expertd_device_error error;
    TRY(check(links, 0, links->calls->begin(&error), &error));
    err_t e = OK;
    for (uint32_t i = 0; i < count_of(links) && !err_is(e); i++) {
        e = check(links, i, links->calls->leave(links->all[i], &error), &error);
    }
    enum expertd_device_code closed = links->calls->end(&error);
    TRY(err_is(e) ? e : check(links, 0, closed, &error));
    return settle_links(links, links->options.timeout_ns, "leaving the other ranks");
}

void links_destroy(struct links *links) {
    if (!links) {
        return;
    }
    if (links->joined) {
        err_t e = leave(links);
        if (err_is(e)) {
            (void)give_up(links, e);
        }
        for (uint32_t i = 0; i < count_of(links) && !err_is(e); i++) {
            links->calls->destroy(links->all[i]);
        }
    }
    aborter_destroy(links->aborter);
    free(links);
}

// ---- lost for good

// Probes the device for up to PROBE_NS. True: the device has failed, or (*stuck) some of its work does not end; links->why is the
// cause.
static bool is_lost(struct links *links, uint32_t device, bool *stuck) {
    const struct expertd_devices *devices = links->options.devices;
    const struct expertd_device_table *table = devices->table;
    struct expertd_device_error error;
    int ended = 0, answered = device != 0; // only the first device downloads outputs
    int64_t started_ns = clock_now_ns();
    enum expertd_device_code code = table->mark(devices->all[device], &error);
    int64_t asked_ns = started_ns; // a query may take long: a simulated device executes its work during the query
    while (code == EXPERTD_DEVICE_OK && !(ended && answered) && asked_ns - started_ns <= PROBE_NS) {
        asked_ns = clock_now_ns();
        code = ended ? EXPERTD_DEVICE_OK : table->finished(devices->all[device], &ended, &error);
        code = code != EXPERTD_DEVICE_OK || answered ? code : table->finished_downloads(devices->all[device], &answered, &error);
        expertd_devices_pause(started_ns);
    }
    if (code == EXPERTD_DEVICE_OK && !(ended && answered)) {
        *stuck = true;
        snprintf(error.message, sizeof error.message, "a kernel or copy on it does not end");
    } else if (code == EXPERTD_DEVICE_OK) {
        return false;
    }
    snprintf(links->why, sizeof links->why, "%s device %u: %s", table->kind, devices->numbers[device], error.message);
    return true;
}

// Searches for a lost device. A device whose probe fails has failed for good, since such CUDA errors last until the process ends. A
// device whose work does not end now may end it later, and then serves again. If no device is lost, waits up to abort_ns for a
// running abort.
static void find_lost(struct links *links, int64_t abort_ns) {
    bool lost = false, stuck = false;
    for (uint32_t i = 0; i < count_of(links) && !lost; i++) {
        lost = is_lost(links, i, &stuck);
    }
    if (links->aborter && !aborter_wait_idle(links->aborter, lost ? 0 : abort_ns)) {
        if (!lost) {
            snprintf(links->why, sizeof links->why, "%u %s devices: the abort of their communicator does not end", count_of(links),
                     links->options.devices->table->kind);
        }
        lost = stuck = true;
    }
    links->options.devices->stuck = stuck;
    atomic_store(&links->lost, lost);
}

FALLIBLE links_alive(struct links *links) {
    if (atomic_load(&links->lost)) {
        find_lost(links, PROBE_NS);
    }
    if (atomic_load(&links->lost)) {
        FAIL(EXPERTD_ERR_SHARD_LOST, "%s: it is lost for good: restart the service", links->why);
    }
    return OK;
}

FALLIBLE links_ready(struct links *links) {
    TRY(links_alive(links));
    if (links->joined || count_of(links) == 1) {
        return OK;
    }
    TRY_IN(join(links), "a new communicator");
    atomic_fetch_add(&links->rebuilds, 1);
    return OK;
}

// ---- transfers

static FALLIBLE start_transfers(struct links *links, const struct link_transfers *of_device) {
    struct expertd_device_error error;
    TRY(check(links, 0, links->calls->begin(&error), &error));
    err_t e = OK;
    for (uint32_t i = 0; i < count_of(links) && !err_is(e); i++) {
        if (of_device[i].count > 0) {
            e = check(links, i, links->calls->transfer(links->all[i], of_device[i].all, of_device[i].count, &error), &error);
        }
    }
    enum expertd_device_code closed = links->calls->end(&error);
    return err_is(e) ? e : check(links, 0, closed, &error);
}

static size_t count_transfers(const struct links *links, const struct link_transfers *of_device) {
    size_t count = 0;
    for (uint32_t i = 0; i < count_of(links); i++) {
        count += of_device[i].count;
    }
    return count;
}

static FALLIBLE transfer_within(struct links *links, const struct link_transfers *of_device, int64_t timeout_ns) {
    INVARIANT(links->joined);
    TRY(start_transfers(links, of_device));
    return settle_links(links, timeout_ns, "the start of a transfer");
}

FALLIBLE links_transfer(struct links *links, const struct link_transfers *of_device) {
    if (count_transfers(links, of_device) == 0) {
        return OK;
    }
    err_t e = transfer_within(links, of_device, links->options.timeout_ns);
    return err_is(e) ? give_up(links, e) : OK;
}

// ---- waiting

static FALLIBLE mark_all(struct links *links) {
    const struct expertd_devices *devices = links->options.devices;
    for (uint32_t i = 0; i < count_of(links); i++) {
        struct expertd_device_error error;
        TRY(check(links, i, devices->table->mark(devices->all[i], &error), &error));
    }
    return OK;
}

// Queries every device and link once. *waiting: the first device whose work has not ended; count_of(links) if all have.
static FALLIBLE query_all(struct links *links, uint32_t *waiting) {
    const struct expertd_devices *devices = links->options.devices;
    *waiting = count_of(links);
    for (uint32_t i = count_of(links); i-- > 0;) {
        struct expertd_device_error error;
        int ended = 0, busy = 0;
        TRY(check(links, i, devices->table->finished(devices->all[i], &ended, &error), &error));
        *waiting = ended ? *waiting : i;
        if (!ended && links->joined) {
            TRY(check(links, i, links->calls->settled(links->all[i], &busy, &error), &error));
        }
    }
    return OK;
}

// first: true for the first transfer at start, which has the timeout of a join.
static FALLIBLE watch(struct links *links, bool first) {
    int64_t started_ns = clock_now_ns(), timeout_ns = first ? links->options.join_timeout_ns : links->options.timeout_ns;
    TRY(mark_all(links));
    for (;;) {
        uint32_t waiting;
        int64_t asked_ns = clock_now_ns();
        TRY(query_all(links, &waiting));
        if (waiting == count_of(links)) {
            return OK;
        }
        if (asked_ns - started_ns > timeout_ns) {
            FAIL(EXPERTD_ERR_SHARD_LOST, "%s device %u did not end %s within %lld ms%s", links->options.devices->table->kind,
                 links->options.devices->numbers[waiting], first ? "a first transfer" : "its part of a batch",
                 (long long)(timeout_ns / NS_PER_MS), first ? "" : " (exchange_timeout_ms)");
        }
        expertd_devices_pause(started_ns);
    }
}

FALLIBLE links_try(struct links *links, const struct link_transfers *of_device) {
    if (count_transfers(links, of_device) == 0) {
        return OK;
    }
    err_t e = transfer_within(links, of_device, links->options.join_timeout_ns);
    if (!err_is(e)) {
        e = watch(links, true);
    }
    return err_is(e) ? give_up(links, e) : OK;
}

// A single device: no peer has to answer.
static FALLIBLE wait_for_one(struct links *links) {
    const struct expertd_devices *devices = links->options.devices;
    struct expertd_device_error error;
    int ended = 1;
    err_t e = expertd_devices_wait(devices, 0);
    links->overdue = err_is(e) && devices->table->finished(devices->all[0], &ended, &error) == EXPERTD_DEVICE_OK && !ended;
    return e;
}

FALLIBLE links_wait(struct links *links) {
    if (count_of(links) == 1) {
        return wait_for_one(links);
    }
    err_t e = watch(links, false);
    return err_is(e) ? give_up(links, e) : OK;
}

// Is waiting again useless?
static bool is_waiting_useless(const struct links *links) {
    return links->overdue || atomic_load(&links->lost);
}

void links_settle(struct links *links) {
    struct err_copy error;
    err_t e = {EXPERTD_ERR_SHARD_LOST};
    err_save(e, &error); // keep the message of the first failure
    if (!is_waiting_useless(links)) {
        e = links_wait(links);
    }
    if (err_is(e) && !is_waiting_useless(links) && count_of(links) > 1) {
        e = links_wait(links); // after the abort the streams continue
    }
    if (err_is(e)) {
        find_lost(links, links->abort_is_late ? links->options.join_timeout_ns : PROBE_NS);
    }
    links->overdue = links->abort_is_late = false;
    (void)err_restore(&error);
}

void links_state(const struct links *links, struct links_state *out) {
    out->rebuilds = atomic_load(&links->rebuilds);
    out->lost = atomic_load(&links->lost);
}
