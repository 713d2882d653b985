// Package profile fits the time of an engine's iteration to what it computes, for
// the simulator: five coefficients, found from measured iterations.
package profile
