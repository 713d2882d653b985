// Package result is what a measurement leaves: the record of each request with
// its time points, statistics over records, and the files and pages made of
// them. Keys and formulas are listed in docs/benchmarking.md; a key means the
// same for a real server and for a simulated one.
//
// Records come in, numbers go out: nothing here has a clock, and equal records
// give equal files.
package result
