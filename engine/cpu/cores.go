package cpu

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// core is a physical core as far as the process may use it.
type core struct {
	node int   // package, whose memory is near
	cpus []int // its processors: one, or hyperthreads
}

// DefaultThreads is what Threads 0 stands for: a thread on each physical core, at
// most as many as the Go runtime was given processors. Two hyperthreads of a core
// gain nothing from these kernels.
func DefaultThreads() int {
	n := runtime.GOMAXPROCS(0)
	if c := len(cores(topology, allowed())); c > 0 {
		n = min(n, c)
	}
	return n
}

// Processors chooses one for each of n threads, behind the first skip ones, which
// are for other ranks: a core for each thread while there are cores, neighbours
// beside each other.
func Processors(skip, n int) ([]int, error) { return spread(cores(topology, allowed()), skip, n) }

func spread(all []core, skip, n int) ([]int, error) {
	var order []int
	for hyper := 0; ; hyper++ {
		before := len(order)
		for _, c := range all {
			if hyper < len(c.cpus) {
				order = append(order, c.cpus[hyper])
			}
		}
		if len(order) == before {
			break
		}
	}
	if len(order) < skip+n {
		return nil, fmt.Errorf("pin_threads: %d threads and %d processors: each thread needs one, set threads to fewer or leave it off", skip+n, len(order))
	}
	return order[skip : skip+n], nil
}

// cores groups processors by the core that they belong to, near ones together.
func cores(read func(cpu int, name string) string, cpus []int) (out []core) {
	seen := map[string]int{}
	for _, cpu := range cpus {
		siblings := read(cpu, "thread_siblings_list")
		i, ok := seen[siblings]
		if !ok || siblings == "" { // unknown: a core of its own
			i = len(out)
			node, _ := strconv.Atoi(read(cpu, "physical_package_id"))
			out, seen[siblings] = append(out, core{node: node}), i
		}
		out[i].cpus = append(out[i].cpus, cpu)
	}
	slices.SortStableFunc(out, func(a, b core) int { return cmp.Compare(a.node, b.node) })
	return out
}

// topology is what Linux tells about a processor, "" if nothing.
func topology(cpu int, name string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/%s", cpu, name))
	return strings.TrimSpace(string(text))
}
