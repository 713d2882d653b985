// Package model turns model files into recorded forward passes.
//
// It owns what a checkpoint means: which files make a model (Open), its
// architecture (Config), its tensors under one set of names whatever the file
// format, the tokenizer's raw material, and the order of operations of each
// architecture (Build). It knows no device: Build speaks to a backend through
// Ops, and backends never see this package.
//
//	ck, err := model.Open(path)
//	defer ck.Close()
//	err = model.Build(backend, ck, model.Parallel{})
package model
