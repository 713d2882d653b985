//go:build cuda

package cuda

import (
	"strings"
	"testing"

	"tandem/engine/cuda/gpu"
)

func TestDevicesThatKernelsNeed(t *testing.T) {
	for _, c := range []struct {
		driver, capability int
		want               string // empty = it will do
	}{
		{13000, 80, ""},
		{13010, 121, ""},
		{12090, 90, "supports CUDA 12.9 and the kernels need 13.0: install driver 580 or later"},
		{13000, 75, "device 0, card, has compute capability 7.5 and the kernels need 8.0"},
	} {
		err := takes(&gpu.Info{Name: "card", Driver: c.driver, Capability: c.capability})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("driver %d, capability %d: %v", c.driver, c.capability, err)
		}
	}
}
