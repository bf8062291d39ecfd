#include "daemon/shard_view/shard_html.h"

#include <inttypes.h>

#include "base/clock.h"
#include "daemon/http/html_text.h"

static void put_memory(const struct front_shard *s, FILE *body) {
    const double mib = 1 << 20;
    fprintf(body, "<td>%.0f / %.0f MiB", (double)s->bytes / mib, (double)s->bytes_max / mib);
}

static void put_traffic(const struct front_shard *s, FILE *body) {
    if (s->is_local) {
        fputs("<td><td><td><td>", body);
        return;
    }
    fprintf(body, "<td>%.0f<td>", s->rows_per_second);
    if (s->round_trip_ns > 0) {
        fprintf(body, "%.2f ms", (double)s->round_trip_ns / NS_PER_MS);
    }
    fputs("<td>", body);
    if (s->heard_age_ns >= 0) {
        fprintf(body, "%.0f ms", (double)s->heard_age_ns / NS_PER_MS);
    }
    fprintf(body, "<td>%" PRIu64, s->false_alarms);
}

static void put_shard(const struct front_shard *s, FILE *body) {
    fprintf(body, "<tr><td>%" PRIu32 "<td>", s->shard);
    html_put_text(s->address, body);
    fprintf(body, "<td>%s%s<td>%" PRIu32, s->state, s->is_drained ? ", drained" : "", s->ready);
    if (s->loading > 0) {
        fprintf(body, " + %" PRIu32, s->loading);
    }
    put_memory(s, body);
    put_traffic(s, body);
    fputs("</tr>", body);
    if (s->message[0]) {
        fputs("<tr><td><td colspan=\"8\">", body);
        html_put_text(s->message, body);
        fputs("</tr>", body);
    }
}

void shard_html_put(const struct shard_listing *listing, FILE *body) {
    const struct front_summary *summary = &listing->summary;
    fprintf(body, "<p>%" PRIu32 " of %" PRIu32 " shards take rows; ", summary->live, summary->shards);
    if (summary->uncovered > 0) {
        fprintf(body, "<b>%" PRIu32 " of %" PRIu32 " experts are on none of them: requests that need one fail</b>",
                summary->uncovered, summary->experts);
    } else {
        fputs("each expert is on at least one of them", body);
    }
    if (summary->below_copies > summary->uncovered) {
        fprintf(body, "; %" PRIu32 " experts are on fewer of them than --copies asks for", summary->below_copies);
    }
    fprintf(body, ". This front %s.</p>",
            summary->places ? "decides which experts each shard holds"
                            : "does not place experts: another one does, or none (--placement-owner)");
    fputs("<table><tr><th>shard<th>address<th>state<th>experts (+ loading)<th>memory<th>rows/s<th>round trip<th>heard "
          "before<th>false "
          "alarms</tr>",
          body);
    for (size_t i = 0; i < listing->count; i++) {
        put_shard(&listing->shards[i], body);
    }
    fputs("</table>", body);
}
