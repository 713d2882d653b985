package metrics

import "github.com/prometheus/client_golang/prometheus"

// Buckets in seconds that dashboards of vLLM and TensorRT-LLM share, so that
// quantiles of different engines compare.
var (
	firstTokenBuckets = []float64{
		.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
	}
	perTokenBuckets = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBuckets  = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	legBuckets      = []float64{.1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920}
)

// Buckets of our own, finer for small models.
var (
	shortBuckets = prometheus.ExponentialBuckets(0.001, 2, 18) // 1 ms .. 131 s
	longBuckets  = prometheus.ExponentialBuckets(0.1, 2, 14)   // 0.1 s .. 819 s
)
