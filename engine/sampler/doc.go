// Package sampler turns one row of logits into one token: bans, biases and
// penalties, then temperature, top-k, min-p, top-p and a counter-based draw.
// A draw depends on (seed, index, stream, logits) and on nothing else, so a
// seeded request gives the same tokens in every batch, after every pause and
// on either side of a ctx/gen split.
//
// It knows nothing of batches, ranks or devices. With a Guide, Sample first forbids
// what the grammar of the request does not allow.
//
//	st := sampler.New(&req.Sampling, req.Prompt)
//	tok, err := st.Sample(logits, len(output), output)
package sampler
