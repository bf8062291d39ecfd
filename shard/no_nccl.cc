// Replaces nccl.cc if the module is built without NCCL's header: one GPU works, and several are refused with the reason.
#include <cstdio>

#include "kernels/device/device_links.h"

static enum expertd_device_code load(char[DEVICE_LINKS_TEXT_MAX], struct expertd_device_error *error) {
    snprintf(error->message, sizeof error->message,
             "this module was built without NCCL, which several devices need: build it again with nccl.h installed "
             "(deploy/install-deps --cuda), or name one device");
    return EXPERTD_DEVICE_MISSING;
}

// No other function is called after load has failed.
extern "C" const struct expertd_device_links expertd_device_links = {load,    nullptr, nullptr, nullptr, nullptr,
                                                                     nullptr, nullptr, nullptr, nullptr, nullptr};
