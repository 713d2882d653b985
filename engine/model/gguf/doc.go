// Package gguf reads the GGUF model format, versions 2 and 3, from bytes in
// memory (usually a file mapping).
//
// It owns the container: metadata keys with typed getters, and tensors as views
// of the input in the project's outermost-first shape order. What the keys mean
// for an architecture is the business of engine/model. Input is not trusted:
// every count, length and offset is checked against the bytes that are there
// before anything is allocated, and each error names the key or tensor.
//
//	f, err := gguf.Parse(data)
//	layers, err := f.Uint("llama.block_count")
//	emb, ok := f.Tensor("token_embd.weight")
package gguf
