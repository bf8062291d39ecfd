// From a repository in the local Hugging Face cache and a revision to the snapshot's folder. Pure, apart from reading folders.
// Private to expert/files/.
#ifndef EXPERTD_EXPERT_FILES_HUB_REVISION_H
#define EXPERTD_EXPERT_FILES_HUB_REVISION_H

#include <limits.h>
#include <stdbool.h>

#include "base/err.h"

struct hub_repository {
    const char *name;   // "ORG/NAME", for messages
    const char *folder; // ".../models--ORG--NAME"
};

// Is the text a revision, such as main, v1.0, refs/pr/1 or a commit? No part of it may begin with '.'.
bool hub_is_revision(const char *text);

// The snapshot's folder. `revision`: a branch or tag that `refs` has, a commit, or the beginning of exactly one commit of at least
// 4 characters. NULL: the commit in refs/main, or without that file the most recently modified snapshot. EXPERTD_ERR_CHECKPOINT
// names the revisions that are there and the command that downloads the missing one.
FALLIBLE hub_snapshot(const struct hub_repository *repository, const char *revision, char path[PATH_MAX]);

#endif
