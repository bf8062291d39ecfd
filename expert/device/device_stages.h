// The stages of a batch on devices (stages.h). A stage enqueues work on the devices' streams. The host waits twice per batch: for
// the routes, which the plan needs, and for the outputs. Arrays that devices access are pinned. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_STAGES_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_STAGES_H

#include "expert/layer/stages.h"

extern const struct layer_stages device_stages;

#endif
