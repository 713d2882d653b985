//go:build !linux

package cpu

// allowed is empty: other systems do not bind threads to processors.
func allowed() []int { return nil }
