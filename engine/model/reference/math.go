package reference

import (
	"math"

	"tandem/engine/tensor"
)

func dot(a, b []float32) float64 {
	sum := 0.0
	for i, x := range a {
		sum += float64(x) * float64(b[i])
	}
	return sum
}

// linear returns w·x + bias; bias may be nil.
func linear(x []float32, w matrix, bias []float32) []float32 {
	out := make([]float32, w.rows)
	for r := range out {
		y := dot(x, w.data[r*w.cols:(r+1)*w.cols])
		if bias != nil {
			y += float64(bias[r])
		}
		out[r] = float32(y)
	}
	return out
}

// rmsNorm returns x / sqrt(mean(x²) + eps) * weight.
func rmsNorm(x, weight []float32, eps float32) []float32 {
	scale := 1 / math.Sqrt(dot(x, x)/float64(len(x))+float64(eps))
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(float64(v) * scale * float64(weight[i]))
	}
	return out
}

// rotate turns the pairs of one head by the angles of its position.
func rotate(head []float32, r tensor.RoPE, pos int) {
	for i, freq := range r.InvFreq {
		a, b := i, i+r.Dims/2
		if r.Adjacent {
			a, b = 2*i, 2*i+1
		}
		angle := float64(pos) * float64(freq)
		sin, cos := math.Sin(angle)*float64(r.Scale), math.Cos(angle)*float64(r.Scale)
		x, y := float64(head[a]), float64(head[b])
		head[a], head[b] = float32(x*cos-y*sin), float32(x*sin+y*cos)
	}
}

func silu(x float32) float64 { return float64(x) / (1 + math.Exp(-float64(x))) }

// gelu in its form with tanh, which with t = sqrt(2/pi)*(x + 0.044715*x³) is
// x/2 * (1 + tanh(t)) = x / (1 + exp(-2t)).
func gelu(x float32) float64 {
	v := float64(x)
	t := math.Sqrt(2/math.Pi) * (v + 0.044715*v*v*v)
	return v / (1 + math.Exp(-2*t))
}
