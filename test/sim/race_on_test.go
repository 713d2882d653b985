//go:build race

package sim

// The simulation has one goroutine, so the race detector finds nothing in more.
const (
	defaultIterations = 3000
	defaultStorms     = 5
)
