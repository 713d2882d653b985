package result

import (
	"math"
	"slices"
)

// Stats describe a distribution: population deviation, percentiles by linear interpolation between ranks. All fields
// are 0 when Count is.
type Stats struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	Std   float64 `json:"std"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
	P50   float64 `json:"p50"`
	P75   float64 `json:"p75"`
	P90   float64 `json:"p90"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p99.9"`
}

// Describe returns the statistics of values, which it sorts.
func Describe(values []float64) Stats {
	if len(values) == 0 {
		return Stats{}
	}
	slices.Sort(values)
	n := float64(len(values))
	var sum, dev float64
	for _, v := range values {
		sum += v
	}
	mean := sum / n
	for _, v := range values {
		dev += (v - mean) * (v - mean)
	}
	return Stats{
		Count: len(values), Mean: mean, Std: math.Sqrt(dev / n), Min: values[0], Max: values[len(values)-1],
		P50: Quantile(values, 0.5), P75: Quantile(values, 0.75), P90: Quantile(values, 0.9), P95: Quantile(values, 0.95),
		P99: Quantile(values, 0.99), P999: Quantile(values, 0.999),
	}
}

// Quantile of sorted values, 0 of none: linear interpolation between ranks.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}
