package main

import (
	"fmt"
	"strconv"
	"strings"

	"tandem/test/bench/speed"
)

// measured is a benchmark with the values of its runs by unit.
type measured struct {
	name   string
	units  []string // in order of their first appearance
	values map[string][]float64
}

// parse reads the output of go test: one line a run, with the name, how often, and pairs of value and unit. Other lines are
// skipped.
func parse(text string) (list []measured) {
	at := map[string]int{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 4 || len(f)%2 != 0 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(f[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 { // how many processors
			if _, err := strconv.Atoi(name[i+1:]); err == nil {
				name = name[:i]
			}
		}
		i, ok := at[name]
		if !ok {
			i, at[name] = len(list), len(list)
			list = append(list, measured{name: name, values: map[string][]float64{}})
		}
		m := &list[i]
		for k := 2; k < len(f); k += 2 {
			v, err := strconv.ParseFloat(f[k], 64)
			if err != nil {
				continue
			}
			if unit := f[k+1]; len(m.values[unit]) == 0 {
				m.units = append(m.units, unit)
			}
			m.values[f[k+1]] = append(m.values[f[k+1]], v)
		}
	}
	return list
}

// row is a line of the table.
func (m *measured) row() string {
	took, rest := "", []string{}
	for _, unit := range m.units {
		v := speed.Median(m.values[unit])
		switch {
		case unit == "ns/op":
			took = nanoseconds(v)
		case unit == "B/op" || unit == "ns/request": // allocations tell the same, and the time of one
		case unit == "allocs/op" && v > 100: // what is set up for a run
		default:
			rest = append(rest, number(v)+" "+unit)
		}
	}
	return fmt.Sprintf("| | `%s` | %s | %s |\n", m.name, took, strings.Join(rest, ", "))
}

// number has four digits, or all before the point.
func number(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

// nanoseconds in the unit that leaves one to three digits before the point.
func nanoseconds(v float64) string {
	for _, unit := range []string{"ns", "µs", "ms"} {
		if v < 1000 {
			return fmt.Sprintf("%.3g %s", v, unit)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.3g s", v)
}
