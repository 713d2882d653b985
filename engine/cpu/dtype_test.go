package cpu

import (
	"testing"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// The C kernels number element types as package tensor does.
func TestElementTypesAreNumberedAlike(t *testing.T) {
	for d := tensor.F32; d <= tensor.Q6_K; d++ {
		want, err := d.Bytes(512)
		if err != nil {
			t.Fatal(err)
		}
		if got := kernels.RowBytes(int(d), 512); got != want {
			t.Errorf("a row of 512 %s has %d bytes, the kernels think %d", d, want, got)
		}
	}
	if got := kernels.RowBytes(int(tensor.Q6_K)+1, 512); got != 0 {
		t.Errorf("the kernels know a type that tensor does not: %d bytes", got)
	}
}
