// The backend that computes batches on devices, GPUs or simulated ones (engine_backend.h). Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_ENGINE_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_ENGINE_H

#include "expert/layer/engine_backend.h"

extern const struct engine_backend device_backend;

#endif
