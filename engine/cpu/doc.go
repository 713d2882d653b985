// Package cpu runs models on the processor: it packs weights, records a model's
// forward pass, owns the KV pool and runs batches, one native call a step. It
// satisfies the Ops interface of engine/model without knowing it.
//
//	b, err := cpu.New(cpu.Config{KV: shape, MaxRows: 2048})
//	// load weights and record ops, then
//	err = b.Seal(vocab)
//	logits, err := b.Run(&batch) // [len(batch.LogitRows), vocab]
//
// A row's logits have the same bits whatever else is in the batch, however its
// prompt was cut in chunks and however many threads run. They differ between
// instruction set levels.
package cpu
