// The engine on the host: reserves memory for batches and computes them with the host's teams. Private to expert/.
#ifndef EXPERTD_EXPERT_HOST_HOST_ENGINE_H
#define EXPERTD_EXPERT_HOST_HOST_ENGINE_H

#include "expert/layer/engine_backend.h"

extern const struct engine_backend host_backend;

#endif
