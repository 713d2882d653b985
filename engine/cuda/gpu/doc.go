// Package gpu reaches CUDA devices through the driver: devices and their primary contexts, memory,
// copies, modules, launches, streams, events, captured graphs, peers and memory shared between
// processes. It knows nothing of models.
//
// A [Device] owns one OS thread on which its context is current. Everything but [Devices], [Open],
// [Device.Do], [Device.Info] and [Device.Close] must run on that thread, inside Do; a whole step
// of the engine is one Do.
// Objects belong to the device that made them and are freed by their owner: nothing is collected.
//
// Errors are of type [*Error]. They wrap [ErrOutOfMemory] when memory ran out, which ends a batch,
// and [ErrBroken] when the context is lost, which ends the process. Without the build tag cuda the
// package is empty.
package gpu
