// Package numerics holds our logits against those of transformers in float32 on
// the dequantised weights of the default model (test/fixtures/logits).
package numerics
