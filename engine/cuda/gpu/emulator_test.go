//go:build cuda

package gpu

import (
	"strings"
	"testing"
)

var nothing *struct{ n int }

// deref faults and returns the panic's text.
func deref() (text string) {
	defer func() { text = recover().(error).Error() }()
	return strings.Repeat("x", nothing.n)
}

// The emulator turns faults inside kernels into errors; those of Go must stay panics, on the
// device's thread and on others.
func TestFaultsOfGoStayPanics(t *testing.T) {
	const want = "invalid memory address or nil pointer dereference"
	on(t, func(b *bench) {
		x := b.floats(make([]float32, 1024)...)
		for range 3 {
			b.scale(b.s, x, x, 1024, 2)
			b.must(b.s.Sync())
			if got := deref(); !strings.Contains(got, want) {
				b.Errorf("on the device's thread: %q", got)
			}
		}
	})
	if got := deref(); !strings.Contains(got, want) {
		t.Errorf("on the test's thread: %q", got)
	}
}
