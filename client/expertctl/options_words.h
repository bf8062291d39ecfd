// The words of expertctl's command line that are no flags, and what each command needs. Private to expertctl's options.
#ifndef EXPERTD_CLIENT_EXPERTCTL_OPTIONS_WORDS_H
#define EXPERTD_CLIENT_EXPERTCTL_OPTIONS_WORDS_H

#include "client/expertctl/options.h"

// A word after the command: the subcommand of placement or shards, a shard's address, the file of placement apply, the model of
// inspect. EXPERTD_ERR_USAGE.
FALLIBLE ctl_read_word(const char *word, struct ctl_options *out);

// Checks the options of the command, which are complete, and fills in its defaults. EXPERTD_ERR_USAGE.
FALLIBLE ctl_check_command(struct ctl_options *o);

#endif
