// Package metamorphic checks that whole engines on the CPU give the same tokens
// and log-probabilities, to the last bit, whatever else runs and however the work
// is cut: batch, chunks, blocks, reuse, overlap, pauses, one engine or two.
package metamorphic
