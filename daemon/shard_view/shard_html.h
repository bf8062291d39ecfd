// The shards of a front on the status page.
#ifndef EXPERTD_DAEMON_SHARD_VIEW_SHARD_HTML_H
#define EXPERTD_DAEMON_SHARD_VIEW_SHARD_HTML_H

#include <stdio.h>

#include "daemon/shard_view/shard_view.h"

// Writes a sentence and a table. Texts from peers are escaped.
void shard_html_put(const struct shard_listing *listing, FILE *body);

#endif
