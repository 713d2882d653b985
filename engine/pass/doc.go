// Package pass records a model's forward pass as a list of checked ops, and
// checks the batches it is run with. It is what backends have in common: each
// turns the list into calls of its own. It imports only the nouns.
package pass
