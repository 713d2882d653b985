// Package emu builds a stand-in for the CUDA driver that runs kernels on the CPU, for tests on
// machines without a GPU. From the kernel sources (*.cu), the device header in include/ and the
// runtime in src/, g++ makes libcuda.so.1, and beside it libcublasLt.so.13 and libnccl.so.2 with
// the functions that the engine uses.
//
// It checks values, protocol and synchronisation and says nothing about speed. Every CUDA thread
// is a fiber; shared and device memory start as NaN patterns; device allocations end at guard
// pages; streams run at once (eager) or only when something waits for them (lazy). Reports name the
// kernel, block, thread and source line, on standard error and as the text of the error code.
//
// Variables: TANDEM_EMU_DEVICES (1), TANDEM_EMU_MEMORY (bytes per device, with K, M or G; 1G),
// TANDEM_EMU_LAUNCH_MEMORY (bytes that must be free for a launch, 0), TANDEM_EMU_STREAMS (eager or
// lazy), TANDEM_EMU_ORDER (forward, reverse or a seed),
// TANDEM_EMU_NCCL_TIMEOUT_MS (60000; how long a rank waits for the others).
package emu
