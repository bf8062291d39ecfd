// The backend that computes batches on the host's CPUs (engine_backend.h). Private to expert/.
#ifndef EXPERTD_EXPERT_HOST_HOST_ENGINE_H
#define EXPERTD_EXPERT_HOST_HOST_ENGINE_H

#include "expert/layer/engine_backend.h"

extern const struct engine_backend host_backend;

#endif
