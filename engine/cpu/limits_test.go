package cpu

import "testing"

func TestMeasureLimits(t *testing.T) {
	l, err := MeasureLimits(2, []int{1 << 16, 1 << 20}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Read) != 2 || l.Read[0] <= 0 || l.Read[1] <= 0 {
		t.Errorf("%+v", l)
	}
}
