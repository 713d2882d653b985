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
	return sorted[low] + float64((at-float64(low))*(sorted[low+1]-sorted[low])) // not fused: simulated runs are equal on all machines
}

// Interval returns the mean and half the width of its 95 % confidence interval by Student's distribution; infinite for one
// value.
func Interval(v []float64) (mean, half float64) {
	n := float64(len(v))
	for _, x := range v {
		mean += x / n
	}
	if len(v) < 2 {
		return mean, math.Inf(1)
	}
	dev := 0.0
	for _, x := range v {
		dev += (x - mean) * (x - mean)
	}
	return mean, student(len(v)-1) * math.Sqrt(dev/(n-1)/n)
}

// students are the two-sided 95 % quantiles by degrees of freedom, from 1.
var students = []float64{
	12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
	2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
}

func student(df int) float64 {
	if df <= len(students) {
		return students[df-1]
	}
	const normal = 1.95996
	return normal + (normal*normal*normal+normal)/(4*float64(df)) // the first term of Cornish and Fisher's expansion
}
