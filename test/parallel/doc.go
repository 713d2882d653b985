// Package parallel checks that a model divided over the ranks of a group, of one
// process or of several, gives the logits of one rank: the same bits, whatever
// the division, and those of a second implementation within tolerance.
package parallel
