#include "daemon/config/options_hosts.h"

#include <stdio.h>
#include <string.h>

#include "daemon/config/options_address.h"
#include "daemon/config/options_conflict.h"
#include "daemon/config/options_table.h"
#include "daemon/config/options_transport.h"

static const char DNS[] = "dns:";

bool options_hosts_next(const char **at, struct options_host *out) {
    const char *text = *at;
    if (!*text) {
        return false;
    }
    size_t length = strcspn(text, ",");
    *at = text + length + (text[length] == ',');
    out->is_name = strncmp(text, DNS, strlen(DNS)) == 0;
    size_t skip = out->is_name ? strlen(DNS) : 0;
    snprintf(out->address, sizeof out->address, "%.*s", (int)(length - skip), text + skip);
    return true;
}

static FALLIBLE check_host(const char *text, size_t length, enum expertd_err_code code) {
    struct options_host host = {0};
    if (length == 0 || length >= sizeof host.address) {
        FAIL(code, "\"%.*s\" is not HOST:PORT or dns:NAME:PORT", (int)(length < 64 ? length : 64), text);
    }
    char entry[OPTIONS_HOST_MAX];
    snprintf(entry, sizeof entry, "%.*s", (int)length, text);
    const char *at = entry;
    (void)options_hosts_next(&at, &host);
    TRY(options_address_check(host.address, false, code));
    if (options_address_port(host.address) == 0) {
        FAIL(code, "\"%s\" has port 0: name the port on which the shard listens", entry);
    }
    if (host.is_name && host.address[0] == '[') {
        FAIL(code, "\"%s\" is an address and no name: leave dns: out", entry);
    }
    return OK;
}

FALLIBLE options_hosts_check(const char *text, enum expertd_err_code code) {
    size_t count = 0;
    for (const char *at = text;; count++) {
        size_t length = strcspn(at, ",");
        TRY(check_host(at, length, code));
        for (const char *before = text; before < at; before += strcspn(before, ",") + 1) {
            if (strcspn(before, ",") == length && strncmp(before, at, length) == 0) {
                FAIL(code, "\"%.*s\" is given twice", (int)length, at);
            }
        }
        if (!at[length]) {
            break;
        }
        at += length + 1;
    }
    if (count >= OPTIONS_HOSTS_MAX) {
        FAIL(code, "%zu addresses are more than the limit of %d: give a DNS name that has them (dns:NAME:PORT)", count + 1,
             OPTIONS_HOSTS_MAX);
    }
    return OK;
}

// ---- together with other options

static FALLIBLE needs_hosts(const struct options *o, enum options_key key, bool is_set) {
    if (is_set && !o->shard_hosts) {
        FAIL(options_conflict_code(o, key, OPTION_SHARD_HOSTS),
             "%s is set (%s), but shard_hosts is not: it applies to shards in other processes only", OPTIONS_ROWS[key].name,
             o->origins[key]);
    }
    return OK;
}

static FALLIBLE check_placement(const struct options *o) {
    if (strcmp(o->placement, "balanced") == 0) {
        FAIL(options_conflict_code(o, OPTION_PLACEMENT, OPTION_SHARD_HOSTS),
             "placement is balanced (%s), but with shard_hosts (%s) experts are placed by what the shards hold and by their load: "
             "leave placement and placement_counts out",
             o->origins[OPTION_PLACEMENT], o->origins[OPTION_SHARD_HOSTS]);
    }
    return OK;
}

static FALLIBLE check_device(const struct options *o) {
    if (strcmp(o->device, "auto") != 0 && strcmp(o->device, "cpu") != 0) {
        FAIL(options_conflict_code(o, OPTION_DEVICE, OPTION_SHARD_HOSTS),
             "device is %s (%s), but with shard_hosts (%s) this version computes on the CPU only: set device to cpu, or leave it "
             "out",
             o->device, o->origins[OPTION_DEVICE], o->origins[OPTION_SHARD_HOSTS]);
    }
    return OK;
}

static FALLIBLE check_copies(const struct options *o, uint32_t hosts, bool has_names) {
    if (!has_names && o->copies > o->shards + hosts) {
        FAIL(options_conflict_code(o, OPTION_COPIES, OPTION_SHARD_HOSTS),
             "copies is %u (%s), but there are %u shards: %u of this process (shards, %s) and %u in shard_hosts (%s); lower "
             "copies, or "
             "add shards",
             o->copies, o->origins[OPTION_COPIES], o->shards + hosts, o->shards, o->origins[OPTION_SHARDS], hosts,
             o->origins[OPTION_SHARD_HOSTS]);
    }
    return OK;
}

static FALLIBLE check_ranks(const struct options *o, uint32_t hosts) {
    if (o->shards + hosts > OPTIONS_RANKS_MAX) {
        FAIL(options_conflict_code(o, OPTION_SHARDS, OPTION_SHARD_HOSTS),
             "shards is %u (%s), and shard_hosts (%s) has %u: together at most %d; lower shards", o->shards,
             o->origins[OPTION_SHARDS], o->origins[OPTION_SHARD_HOSTS], hosts, OPTIONS_RANKS_MAX);
    }
    return OK;
}

FALLIBLE options_check_hosts(const struct options *o) {
    TRY(needs_hosts(o, OPTION_COPIES, o->copies > 1));
    TRY(needs_hosts(o, OPTION_PLACEMENT_OWNER, !o->placement_owner));
    TRY(needs_hosts(o, OPTION_SHARDS, o->shards == 0));
    if (!o->shard_hosts) {
        return OK;
    }
    TRY(check_placement(o));
    TRY(check_device(o));
    struct options_host host;
    uint32_t hosts = 0;
    bool has_names = false;
    for (const char *at = o->shard_hosts; options_hosts_next(&at, &host); hosts++) {
        TRY_IN(options_check_dial(o, host.address), "shard_hosts (%s)", o->origins[OPTION_SHARD_HOSTS]);
        has_names |= host.is_name;
    }
    TRY(check_ranks(o, hosts));
    return check_copies(o, hosts, has_names);
}
