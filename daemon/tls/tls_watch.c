#include "daemon/tls/tls_watch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>
#include <uv.h>

#include "daemon/log/log.h"

enum { PERIOD_MS = 1000, DAY_S = 86400, NO_NOTICE = -1 };

struct tls_watch {
    uv_loop_t *loop;
    struct tls_store *store;
    uv_timer_t timer;
    uv_work_t work;
    bool working, stopping, timer_closed;
    enum tls_change change; // written by the pool's thread while `working`
    struct err_copy error;
    int notice;          // the last that was logged for `generation`
    uint64_t generation; // of the snapshot that `notice` belongs to
};

int tls_watch_notice(int64_t left_s, int64_t valid_s) {
    static const int NOTICES[] = {1, 2, 3, 7, 14, 30};
    if (left_s <= 0) {
        return 0;
    }
    for (size_t i = 0; i < sizeof NOTICES / sizeof *NOTICES && left_s <= valid_s / 3; i++) {
        if (left_s <= NOTICES[i] * (int64_t)DAY_S) {
            return NOTICES[i];
        }
    }
    return NO_NOTICE;
}

static void free_if_done(struct tls_watch *watch) {
    if (watch->stopping && watch->timer_closed && !watch->working) {
        free(watch);
    }
}

static void log_expiry(struct tls_watch *watch, const struct tls_snapshot *snapshot) {
    const struct tls_texts *texts = &snapshot->texts;
    if (!texts->cert) {
        return;
    }
    int64_t left_s = texts->expires_s - (int64_t)time(NULL);
    int notice = tls_watch_notice(left_s, texts->expires_s - texts->begins_s);
    if (snapshot->generation != watch->generation) {
        watch->generation = snapshot->generation;
        watch->notice = NO_NOTICE;
    }
    if (notice == NO_NOTICE || notice == watch->notice) {
        return;
    }
    watch->notice = notice;
    char names[2 * TLS_NAMES_MAX];
    log_line(left_s > 0 ? LOG_LEVEL_WARNING : LOG_LEVEL_ERROR, left_s > 0 ? "tls_certificate_expires" : "tls_certificate_expired",
             "names=%s seconds_left=%" PRId64
             " mend=\"replace the files of --tls-cert and --tls-key: they are read without a restart\"",
             log_quote(texts->names, names, sizeof names), left_s);
}

static void log_replaced(const struct tls_snapshot *snapshot) {
    char names[2 * TLS_NAMES_MAX];
    log_line(LOG_LEVEL_INFO, "tls_replaced", "generation=%" PRIu64 " names=%s expires_s=%" PRId64, snapshot->generation,
             log_quote(snapshot->texts.names, names, sizeof names), snapshot->texts.expires_s);
}

static void log_broken(const struct err_copy *error) {
    char quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    log_line(LOG_LEVEL_ERROR, "tls_broken", "message=%s kept=\"the files that were read before\"",
             log_quote(error->message, quoted, sizeof quoted));
}

static void refresh(uv_work_t *work) {
    struct tls_watch *watch = work->data;
    watch->change = tls_store_refresh(watch->store, &watch->error);
}

static void on_refreshed(uv_work_t *work, int status) {
    struct tls_watch *watch = work->data;
    watch->working = false;
    if (status == 0 && !watch->stopping) {
        const struct tls_snapshot *snapshot = tls_store_take(watch->store);
        if (watch->change == TLS_REPLACED) {
            log_replaced(snapshot);
        } else if (watch->change == TLS_BROKEN) {
            log_broken(&watch->error);
        }
        log_expiry(watch, snapshot);
        tls_store_release(watch->store, snapshot);
    }
    free_if_done(watch);
}

static void start_refresh(struct tls_watch *watch) {
    if (!watch->working) { // a slow file system skips looks instead of queueing them
        watch->working = uv_queue_work(watch->loop, &watch->work, refresh, on_refreshed) == 0;
    }
}

static void on_timer(uv_timer_t *timer) {
    start_refresh(timer->data);
}

FALLIBLE tls_watch_start(void *loop, struct tls_store *store, struct tls_watch **out) {
    struct tls_watch *watch = *out = calloc(1, sizeof *watch);
    if (!watch) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for watching the TLS files");
    }
    watch->loop = loop;
    watch->store = store;
    watch->timer.data = watch->work.data = watch;
    watch->notice = NO_NOTICE;
    uv_timer_init(watch->loop, &watch->timer);
    uv_timer_start(&watch->timer, on_timer, PERIOD_MS, PERIOD_MS);
    start_refresh(watch); // libuv starts its threads here, which inherit the blocked signals of a daemon that is being built
    return OK;
}

static void on_timer_closed(uv_handle_t *handle) {
    struct tls_watch *watch = handle->data;
    watch->timer_closed = true;
    free_if_done(watch);
}

void tls_watch_stop(struct tls_watch *watch) {
    if (watch) {
        watch->stopping = true;
        uv_close((uv_handle_t *)&watch->timer, on_timer_closed);
    }
}
