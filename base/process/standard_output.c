#include "base/process/standard_output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

FALLIBLE standard_output_flush(void) {
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) { // after an earlier error, errno is no longer known
        FAIL(EXPERTD_ERR_IO, "standard output: %s", errno ? strerror(errno) : "some output could not be written");
    }
    return OK;
}
