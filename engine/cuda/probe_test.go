package cuda

import (
	"errors"
	"strings"
	"testing"
)

func TestProbeExplains(t *testing.T) {
	err := Probe()
	if err == nil {
		if !Built {
			t.Error("a build without CUDA found a device")
		}
		return
	}
	if !errors.Is(err, ErrUnavailable) || !strings.HasPrefix(err.Error(), "no CUDA device: ") {
		t.Errorf("Probe: %v", err)
	}
	if !Built && !strings.Contains(err.Error(), "built without CUDA support") {
		t.Errorf("Probe: %v", err)
	}
}
