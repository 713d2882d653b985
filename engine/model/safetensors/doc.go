// Package safetensors reads the safetensors weight format and its shard index
// from bytes in memory (usually a file mapping).
//
// It owns the container only; engine/model gives the tensors their meaning.
// Input is not trusted: the header length is capped, every offset is checked
// against the file, and each error names the tensor.
package safetensors
