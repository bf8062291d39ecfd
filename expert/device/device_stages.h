// The stages of a batch on devices. Each works from and into the engine's arrays; those that devices access are pinned. A stage
// puts work into the devices' streams; the host waits twice: for the routes, and for the outputs. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_STAGES_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_STAGES_H

#include "expert/layer/stages.h"

extern const struct layer_stages device_stages;

#endif
