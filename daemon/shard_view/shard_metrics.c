#include "daemon/shard_view/shard_metrics.h"

#include <inttypes.h>

#include "base/clock.h"
#include "daemon/metrics/metrics_text.h"

static void put_name(const char *name, const struct front_shard *s, FILE *out) {
    fprintf(out, "expertd_%s{shard=\"%" PRIu32 "\",address=\"", name, s->shard);
    metrics_put_label(out, s->address);
    fputc('"', out);
}

// ---- integers of each shard

struct count_row {
    const char *name, *type, *help;
    uint64_t (*read)(const struct front_shard *shard);
    bool is_remote; // not of the shards of this process
};

#define READER(name, value)                                                                                                        \
    static uint64_t read_##name(const struct front_shard *s) {                                                                     \
        return (value);                                                                                                            \
    }
READER(up, s->is_live)
READER(draining, s->is_draining)
READER(memory, s->bytes)
READER(memory_limit, s->bytes_max)
READER(connections, s->connections)
READER(false_alarms, s->false_alarms)
READER(batches, s->batches)
READER(rows, s->rows)
READER(sent, s->bytes_sent)
READER(received, s->bytes_received)
READER(errors, s->errors)
READER(refused, s->refused)

static const struct count_row COUNTS[] = {
    {"front_shard_up", "gauge", "1 while new batches use the shard.", read_up, false},
    {"front_shard_draining", "gauge", "1 while the shard's experts move to other shards, and afterwards.", read_draining, false},
    {"front_shard_memory_bytes", "gauge", "Memory of the shard's experts.", read_memory, false},
    {"front_shard_memory_limit_bytes", "gauge", "The limit of that memory.", read_memory_limit, false},
    {"front_shard_connections_total", "counter", "Streams for rows that were opened to the shard.", read_connections, true},
    {"front_shard_false_alarms_total", "counter", "Silences of the shard that ended before its connection did.", read_false_alarms,
     true},
    {"front_shard_batches_total", "counter", "Batches of which rows were sent to the shard.", read_batches, true},
    {"front_shard_rows_total", "counter", "Rows sent to the shard.", read_rows, true},
    {"front_shard_sent_bytes_total", "counter", "Bytes of the messages of rows sent to the shard.", read_sent, true},
    {"front_shard_received_bytes_total", "counter", "Bytes of the messages of results received from the shard.", read_received,
     true},
    {"front_shard_errors_total", "counter", "Answers of the shard that are an error.", read_errors, true},
    {"front_shard_refused_total", "counter", "Answers that no correct shard sends; each ended the stream.", read_refused, true},
};

static void put_counts(const struct shard_listing *listing, FILE *out) {
    for (size_t row = 0; row < sizeof COUNTS / sizeof *COUNTS; row++) {
        metrics_put_family(out, COUNTS[row].name, COUNTS[row].type, COUNTS[row].help);
        for (size_t i = 0; i < listing->count; i++) {
            const struct front_shard *s = &listing->shards[i];
            if (!COUNTS[row].is_remote || !s->is_local) {
                put_name(COUNTS[row].name, s, out);
                fprintf(out, "} %" PRIu64 "\n", COUNTS[row].read(s));
            }
        }
    }
}

static void put_experts(const struct shard_listing *listing, FILE *out) {
    const char *name = "front_shard_experts";
    metrics_put_family(out, name, "gauge",
                       "Experts of the shard by state: in memory, being loaded, being given up, and failed to load.");
    for (size_t i = 0; i < listing->count; i++) {
        const struct front_shard *s = &listing->shards[i];
        const struct {
            const char *state;
            uint32_t count;
        } states[] = {{"ready", s->ready}, {"loading", s->loading}, {"retiring", s->retiring}, {"failed", s->failed}};
        for (size_t k = 0; k < sizeof states / sizeof *states; k++) {
            put_name(name, s, out);
            fprintf(out, ",state=\"%s\"} %" PRIu32 "\n", states[k].state, states[k].count);
        }
    }
}

// ---- times of each shard in another process

static int64_t read_round_trip(const struct front_shard *s) {
    return s->round_trip_ns > 0 ? s->round_trip_ns : -1;
}

static int64_t read_heard(const struct front_shard *s) {
    return s->heard_age_ns;
}

static int64_t read_compute(const struct front_shard *s) {
    return (int64_t)s->compute_ns;
}

static const struct {
    const char *name, *type, *help;
    int64_t (*read)(const struct front_shard *shard); // < 0: not known
} TIMES[] = {
    {"front_shard_round_trip_seconds", "gauge", "Round trip of the shard's last heartbeat.", read_round_trip},
    {"front_shard_heartbeat_age_seconds", "gauge", "Time since the shard's last answer to a heartbeat, while it is connected.",
     read_heard},
    {"front_shard_compute_seconds_total", "counter", "Time that the shard computed rows of this front, as it reports it.",
     read_compute},
};

static void put_times(const struct shard_listing *listing, FILE *out) {
    for (size_t row = 0; row < sizeof TIMES / sizeof *TIMES; row++) {
        metrics_put_family(out, TIMES[row].name, TIMES[row].type, TIMES[row].help);
        for (size_t i = 0; i < listing->count; i++) {
            const struct front_shard *s = &listing->shards[i];
            int64_t ns = TIMES[row].read(s);
            if (!s->is_local && ns >= 0) {
                put_name(TIMES[row].name, s, out);
                fprintf(out, "} %.9g\n", (double)ns / NS_PER_S);
            }
        }
    }
}

// ---- the front

static void put_number(FILE *out, const char *name, const char *type, const char *help, uint64_t value) {
    metrics_put_family(out, name, type, help);
    fprintf(out, "expertd_%s %" PRIu64 "\n", name, value);
}

static void put_summary(const struct front_summary *s, FILE *out) {
    put_number(out, "front_shards", "gauge", "Shards that the front knows, its own included.", s->shards);
    put_number(out, "front_shards_live", "gauge", "Shards that take rows.", s->live);
    put_number(out, "front_experts", "gauge", "Experts of all layers.", s->experts);
    put_number(out, "front_experts_uncovered", "gauge", "Experts on no live shard; a batch that needs one fails with SHARD_LOST.",
               s->uncovered);
    put_number(out, "front_experts_below_copies", "gauge", "Experts on fewer live shards than --copies, the uncovered ones too.",
               s->below_copies);
    put_number(out, "front_places_experts", "gauge", "1 if this front decides which experts shards hold.", s->places);
    put_number(out, "front_stalls_total", "counter",
               "Times that this process did not run for so long that the silence of its shards says nothing.", s->stalls);
}

static void put_exchange(const struct exchange_remote_state *x, FILE *out) {
    put_number(out, "front_plans_repeated_total", "counter", "Batches planned again on other shards after one had failed.",
               x->plans_repeated);
    put_number(out, "front_links_lost_total", "counter", "Connections that ended, or did not answer in time, during a batch.",
               x->links_lost);
    put_number(out, "front_answer_errors_total", "counter", "Shares of batches that a shard answered with an error.", x->errors);
    put_number(out, "front_answers_late_total", "counter", "Answers to batches that had ended.", x->answers_late);
    put_number(out, "front_answers_refused_total", "counter", "Answers that no correct shard sends.", x->answers_refused);
    put_number(out, "front_sent_bytes_total", "counter", "Bytes of hidden rows sent to shards.", x->bytes_sent);
    put_number(out, "front_received_bytes_total", "counter", "Bytes of result rows received from shards.", x->bytes_received);
}

void shard_metrics_put(const struct shard_listing *listing, const struct exchange_remote_state *exchange, FILE *out) {
    put_summary(&listing->summary, out);
    if (exchange) {
        put_exchange(exchange, out);
    }
    put_counts(listing, out);
    put_experts(listing, out);
    put_times(listing, out);
}
