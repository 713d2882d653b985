package report

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The parts of the page that are made, each between a begin and an end marker.
const (
	PartReport = "report"
	PartPTXAS  = "ptxas"
)

// Replace puts text between the markers of a part of the page.
func Replace(page, part, text string) (string, error) {
	begin, end := "<!-- "+part+": begin -->\n", "<!-- "+part+": end -->"
	head, rest, ok := strings.Cut(page, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("the page has no %q and %q", strings.TrimSpace(begin), end)
	}
	return head + begin + "\n" + strings.TrimSpace(text) + "\n\n" + end + tail, nil
}

var ptxasLine = regexp.MustCompile(`^sm_(\d+) (\w+) (\w+): registers (\d+), stack (\d+), spill stores (\d+), spill loads (\d+), shared (\d+),`)

// use is what the kernels of a module need at the most.
type use struct{ kernels, registers, shared, local int }

// PTXAS makes a table of what ptxas said of every kernel: the most of each module and target.
func PTXAS(log string) (string, error) {
	of := map[string]map[string]*use{} // by module and target
	targets := map[string]bool{}
	for line := range strings.Lines(log) {
		m := ptxasLine.FindStringSubmatch(line)
		if m == nil {
			return "", fmt.Errorf("not a line of ptxas.log: %s", strings.TrimSpace(line))
		}
		var v [5]int
		for i := range v {
			v[i], _ = strconv.Atoi(m[4+i]) // digits only
		}
		if of[m[2]] == nil {
			of[m[2]] = map[string]*use{}
		}
		u := of[m[2]][m[1]]
		if u == nil {
			u = &use{}
			of[m[2]][m[1]], targets[m[1]] = u, true
		}
		u.kernels++
		u.registers, u.shared = max(u.registers, v[0]), max(u.shared, v[4])
		u.local = max(u.local, v[1], v[2], v[3])
	}
	return ptxasTable(of, slices.Sorted(maps.Keys(targets))), nil
}

func ptxasTable(of map[string]map[string]*use, targets []string) string {
	var b strings.Builder
	b.WriteString("| module | kernels |")
	for _, t := range targets {
		fmt.Fprintf(&b, " sm_%s registers | shared, bytes | stack and spills, bytes |", t)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|---|---|", len(targets)) + "\n")
	for _, module := range slices.Sorted(maps.Keys(of)) {
		kernels, row := 0, ""
		for _, t := range targets {
			u := of[module][t]
			if u == nil {
				row += " | | |"
				continue
			}
			kernels = max(kernels, u.kernels)
			row += fmt.Sprintf(" %d | %d | %d |", u.registers, u.shared, u.local)
		}
		fmt.Fprintf(&b, "| `%s` | %d |%s\n", module, kernels, row)
	}
	return b.String()
}
