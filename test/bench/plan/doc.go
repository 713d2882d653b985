// Package plan sizes clusters on the simulator: what rate an instance can take
// within limits, how many ctx instances a gen instance needs, and which whole
// numbers of them are best for a number of accelerators.
package plan
