/* Between the two halves of the emulator: tests/emulate/runtime.cpp has memory and streams, device.cpp runs kernels. */
#ifndef WF_TESTS_EMULATE_EMULATE_H
#define WF_TESTS_EMULATE_EMULATE_H

#include <cuda_runtime.h>

/* All threads of a kernel, to their end. */
void emulated_run(const cudaLaunchConfig_t &config, const emulated_work *work);
/* Ends the program: the message tells what a device would have done wrong. */
[[noreturn]] void emulated_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
