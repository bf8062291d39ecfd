// The Linux system calls that the tests need. Most are passed to the host, with guest addresses translated to host addresses. Any
// other call fails with ENOSYS and a line on stderr.
#ifndef EXPERTD_TESTS_EMULATED_SYSTEM_CALLS_H
#define EXPERTD_TESTS_EMULATED_SYSTEM_CALLS_H

// Serves the CPU's current system call and sets its registers for the program to continue.
void serve_system_call(void);

#endif
