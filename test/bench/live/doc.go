// Package live compares workers that run with the simulator: it takes what their
// steps cost from their flight recorders, under the load that they have, fits the
// simulator's coefficients to that, and puts both runs of a workload side by side.
package live
