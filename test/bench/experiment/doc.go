// Package experiment has the presets of bench sim: published results of routing
// and of dividing prefill from decode, set up again on the simulator, each with
// what must come out. A value from here is simulated; absolute seconds of other
// people's devices are no targets, signs and bands are.
package experiment
