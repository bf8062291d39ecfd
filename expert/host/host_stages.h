// The stages of a batch on the host (stages.h). Private to expert/.
#ifndef EXPERTD_EXPERT_HOST_HOST_STAGES_H
#define EXPERTD_EXPERT_HOST_HOST_STAGES_H

#include "expert/layer/stages.h"

extern const struct layer_stages host_stages;

#endif
