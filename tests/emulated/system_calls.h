// Linux's system calls, as far as the tests need them: most are handed to the host with the guest's addresses turned into its own.
// One that is not served fails with ENOSYS, and a line on stderr says which.
#ifndef EXPERTD_TESTS_EMULATED_SYSTEM_CALLS_H
#define EXPERTD_TESTS_EMULATED_SYSTEM_CALLS_H

// Serves the call that the CPU has just made, and leaves in its registers what the program goes on with.
void serve_system_call(void);

#endif
