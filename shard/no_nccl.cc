// In nccl.cc's place where the module was built without NCCL's header: one GPU serves, and who asks for several is told why not.
#include <cstdio>

#include "kernels/device/device_links.h"

static enum expertd_device_code load(char[DEVICE_LINKS_TEXT_MAX], struct expertd_device_error *error) {
    snprintf(error->message, sizeof error->message,
             "this module was built without NCCL, which several devices need: build it again where nccl.h is (deploy/install-deps "
             "--cuda brings it), or name one device");
    return EXPERTD_DEVICE_MISSING;
}

// Nothing else is called after that.
extern "C" const struct expertd_device_links expertd_device_links = {load,    nullptr, nullptr, nullptr, nullptr,
                                                                     nullptr, nullptr, nullptr, nullptr, nullptr};
