package main

import (
	"strings"
	"testing"
)

const output = `goos: linux
pkg: tandem/engine/x
BenchmarkA/b=1-2         	     318	    183178 ns/op	       2715.5 MB/s	       0 B/op	       0 allocs/op
    a_test.go:3: BenchmarkB is next
BenchmarkTop-k-16    	     1	    2500000000 ns/op
BenchmarkA/b=1-2         	     318	    183200 ns/op	       0.5 MB/s	       0 B/op	       2 allocs/op
BenchmarkA/b=1-2         	     318	    999 ns/op	       1234.5 MB/s	       0 B/op	       1 allocs/op
BenchmarkOdd-2 7 x
PASS
ok  	tandem/engine/x	1.070s
`

func TestParse(t *testing.T) {
	list := parse(output)
	var rows strings.Builder
	for i := range list {
		rows.WriteString(list[i].row())
	}
	const want = "| | `A/b=1` | 183 µs | 1234 MB/s, 1 allocs/op |\n| | `Top-k` | 2.5 s |  |\n"
	if rows.String() != want {
		t.Errorf("%s\nwant\n%s", rows.String(), want)
	}
}

func TestNanoseconds(t *testing.T) {
	for v, want := range map[float64]string{0.5: "0.5 ns", 32.07: "32.1 ns", 1649766: "1.65 ms", 2.488802128e9: "2.49 s"} {
		if got := nanoseconds(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

func TestOnlyNamesPackages(t *testing.T) {
	var out strings.Builder
	if err := run(&options{only: "no such package"}, &out, &out); err == nil || !strings.Contains(err.Error(), "-only") {
		t.Errorf("%v", err)
	}
}
