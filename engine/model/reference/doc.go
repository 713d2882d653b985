// Package reference is the slow and obvious backend: plain Go, float64 sums,
// float32 storage, one position at a time. Other backends and the whole forward
// pass are tested against it; it serves no requests.
//
// It records what an architecture asks for as a list of functions and runs them
// for each batch, over the same paged cache and page tables as the others.
package reference
