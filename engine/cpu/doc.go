// Package cpu runs models on the processor: it packs weights, records a model's
// forward pass, owns the KV pool and runs batches, one native call a step. It
// satisfies the Ops interface of engine/model without knowing it.
//
//	b, err := cpu.New(cpu.Config{KV: shape, MaxRows: 2048})
//	// load weights and record ops, then
//	err = b.Seal(vocab)
//	logits, err := b.Run(&batch) // [len(batch.LogitRows), vocab]
//
// A rank of a group (Config.Group) records the ops of its part of the model. The
// pass then runs in segments: a native call up to each collective, and the
// collective in Go. All ranks run every pass, also without rows of their own.
// Ranks of one process share weights in a Store.
//
// A row's logits have the same bits whatever else is in the batch, however its
// prompt was cut in chunks, however many threads run and whichever rank computes
// what. They differ between instruction set levels.
package cpu
