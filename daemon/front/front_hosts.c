#include "daemon/front/front_hosts.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory_cause.h"
#include "daemon/front/front_step.h"
#include "daemon/log/log.h"

enum { RESOLVE_PERIOD_S = 5, ADDRESSES_MAX = 512 };

FALLIBLE front_hosts_create(struct front *front) {
    struct options_host host;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&front->resolve, &attributes);
    pthread_condattr_destroy(&attributes);
    front->hosts = calloc(OPTIONS_HOSTS_MAX, sizeof *front->hosts);
    if (!front->hosts) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the addresses of shards");
    }
    for (const char *at = front->options.options->shard_hosts; options_hosts_next(&at, &host); front->host_count++) {
        front->hosts[front->host_count] = host;
    }
    return OK;
}

void front_hosts_destroy(struct front *front) {
    free(front->hosts);
    pthread_cond_destroy(&front->resolve);
}

static void list_address(struct front *front, uint32_t host, const char *address) {
    uint32_t member;
    char quoted[2 * MEMBER_ADDRESS_MAX];
    if (err_is(membership_add(&front->membership, address, clock_now_ns(), &member))) {
        log_line(LOG_LEVEL_ERROR, "shard_not_added", "address=%s message=\"%s\"", log_quote(address, quoted, sizeof quoted),
                 expertd_err_message());
        return;
    }
    front->notes[member].host = (int16_t)host;
    front_run(front);
}

void front_hosts_list(struct front *front) {
    if (front->hosts_are_listed) {
        return;
    }
    front->hosts_are_listed = true;
    for (uint32_t i = 0; i < front->host_count; i++) {
        if (!front->hosts[i].is_name) {
            list_address(front, i, front->hosts[i].address);
        }
    }
}

// ---- names

struct addresses {
    size_t count;
    char texts[ADDRESSES_MAX][72]; // HOST:PORT in numbers
};

// False: the name service does not answer, or knows no address: no news.
static bool resolve(const struct options_host *host, struct addresses *out, char why[FRONT_WHY_MAX]) {
    char name[OPTIONS_HOST_MAX], number[64];
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    snprintf(name, sizeof name, "%s", host->address);
    char *port = strrchr(name, ':');
    *port++ = '\0';
    int error = getaddrinfo(name, port, &hints, &found);
    out->count = 0;
    for (const struct addrinfo *a = found; !error && a && out->count < ADDRESSES_MAX; a = a->ai_next) {
        if (getnameinfo(a->ai_addr, a->ai_addrlen, number, sizeof number, NULL, 0, NI_NUMERICHOST) == 0) {
            bool six = a->ai_family == AF_INET6;
            snprintf(out->texts[out->count++], sizeof out->texts[0], "%s%s%s:%s", six ? "[" : "", number, six ? "]" : "", port);
        }
    }
    if (found) {
        freeaddrinfo(found);
    }
    snprintf(why, FRONT_WHY_MAX, "%s", error ? gai_strerror(error) : "it has no address");
    return out->count > 0;
}

static bool has(const struct addresses *addresses, const char *address) {
    for (size_t i = 0; i < addresses->count; i++) {
        if (strcmp(addresses->texts[i], address) == 0) {
            return true;
        }
    }
    return false;
}

static void log_unlisted(const struct front *front, uint32_t member) {
    char name[2 * OPTIONS_HOST_MAX], address[2 * MEMBER_ADDRESS_MAX];
    const struct options_host *host = &front->hosts[front->notes[member].host];
    log_line(LOG_LEVEL_INFO, "shard_unlisted",
             "shard=%u address=%s name=%s message=\"the name no longer has this address: it is used while it is connected\"",
             member, log_quote(front->membership.members[member].address, address, sizeof address),
             log_quote(host->address, name, sizeof name));
}

// Brings the membership up to date with the addresses of one name.
static void apply(struct front *front, uint32_t host, const struct addresses *addresses) {
    front_hosts_list(front); // a name with many addresses leaves no slot for others
    for (size_t i = 0; i < addresses->count; i++) {
        list_address(front, host, addresses->texts[i]);
    }
    for (uint32_t i = front->local; i < front->ranks; i++) {
        const struct member *member = &front->membership.members[i];
        if (member->is_used && member->is_listed && front->notes[i].host == (int16_t)host && !has(addresses, member->address)) {
            struct membership_event event = {.kind = MEMBERSHIP_UNLIST, .member = i};
            log_unlisted(front, i);
            front_event(front, &event);
        }
    }
}

// With the mutex, which is not held while the name service works.
static void ask(struct front *front, uint32_t host, struct addresses *addresses, bool *has_failed) {
    char why[FRONT_WHY_MAX], quoted[2 * FRONT_WHY_MAX], name[2 * OPTIONS_HOST_MAX];
    front_unlock(front);
    bool ok = resolve(&front->hosts[host], addresses, why);
    front_lock(front);
    if (ok && !front->is_stopping) {
        apply(front, host, addresses);
    } else if (!ok && !*has_failed) { // logged once until it works again
        log_line(LOG_LEVEL_WARNING, "shard_names_unknown", "name=%s message=%s",
                 log_quote(front->hosts[host].address, name, sizeof name), log_quote(why, quoted, sizeof quoted));
    }
    *has_failed = !ok;
}

static void *resolver_main(void *context) {
    struct front *front = context;
    struct addresses *addresses = calloc(1, sizeof *addresses);
    bool has_failed[OPTIONS_HOSTS_MAX] = {false};
    INVARIANT(addresses); // 36 KB
    front_lock(front);
    while (!front->is_stopping) {
        for (uint32_t i = 0; i < front->host_count && !front->is_stopping; i++) {
            if (front->hosts[i].is_name) {
                ask(front, i, addresses, &has_failed[i]);
            }
        }
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += RESOLVE_PERIOD_S;
        if (!front->is_stopping) {
            pthread_cond_timedwait(&front->resolve, &front->mutex, &until);
        }
    }
    front_unlock(front);
    free(addresses);
    return NULL;
}

FALLIBLE front_hosts_start(struct front *front) {
    bool has_names = false;
    for (uint32_t i = 0; i < front->host_count; i++) {
        has_names |= front->hosts[i].is_name;
    }
    if (!has_names) {
        return OK;
    }
    int error = pthread_create(&front->resolver, NULL, resolver_main, front);
    if (error) {
        char cause[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot start the thread that resolves names: %s", memory_cause_of_thread(error, cause));
    }
    pthread_setname_np(front->resolver, "resolver");
    front->has_resolver = true;
    return OK;
}

void front_hosts_stop(struct front *front) {
    if (front->has_resolver) {
        pthread_cond_signal(&front->resolve); // is_stopping is set
        pthread_join(front->resolver, NULL);
        front->has_resolver = false;
    }
}
