//go:build !race

package sim

const (
	defaultIterations = 20000
	defaultStorms     = 50
)
