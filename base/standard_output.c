#include "base/standard_output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

FALLIBLE standard_output_flush(void) {
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) { // an earlier loss has no errno left
        FAIL(EXPERTD_ERR_IO, "standard output: %s", errno ? strerror(errno) : "not all could be written");
    }
    return OK;
}
