package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/scheduler"
)

// named matches a test, benchmark or fuzz target that the page on testing names, as folder.name.
var named = regexp.MustCompile("`((?:engine|kernels|serve|test)[a-z0-9/]*)\\.((?:Test|Benchmark|Fuzz)\\w+)`")

// TestPageOnTestingIsTrue proves that the page has a row with tests for each scenario and each invariant
// of the engine's core, and that all that it names with a folder is in that folder.
func TestPageOnTestingIsTrue(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", "testing.md"))
	if err != nil {
		t.Fatal(err)
	}
	page, where := string(data), map[string]string{}
	_, core, ok := strings.Cut(page, "\n## The engine's core\n")
	if !ok {
		t.Fatal("there is nothing on the engine's core")
	}
	var rows []string
	for n := 1; n <= 30; n++ {
		rows = append(rows, strconv.Itoa(n))
	}
	for n := 1; n <= 18; n++ {
		rows = append(rows, fmt.Sprint("INV-", n))
	}
	for _, row := range rows {
		if m := regexp.MustCompile("(?m)^\\| "+row+" \\|.*$").FindAllString(core, -1); len(m) != 1 || !named.MatchString(m[0]) {
			t.Errorf("%s has no row, or no test: %q", row, m)
		}
	}
	for _, m := range named.FindAllStringSubmatch(page, -1) {
		if _, ok := where[m[1]]; !ok {
			where[m[1]] = tests(t, m[1])
		}
		if !regexp.MustCompile(`(?m)^func ` + m[2] + `\(`).MatchString(where[m[1]]) {
			t.Errorf("%s has no %s", m[1], m[2])
		}
	}
}

// tests returns the text of a folder's tests.
func tests(t *testing.T, folder string) (text string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no tests (%v)", folder, err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		text += string(data) + "\n"
	}
	return text
}

// TestScenario30Goodput serves the same clients with and without cancels, broken
// connections and failed steps: those who stay get their answers as fast. With
// SOAK it is an hour of theirs.
func TestScenario30Goodput(t *testing.T) {
	span := 20 * time.Second
	if os.Getenv("SOAK") != "" {
		span = time.Hour
	}
	clean, _ := goodput(t, span, Faults{})
	// A client in twenty, a connection in a hundred, a step in a thousand.
	faulty, stay := goodput(t, span, Faults{Cancel: 0.03, Cut: 0.01, Step: 0.001})
	if stay > 0.96 || stay < 0.9 {
		t.Errorf("%.3f of the clients stay", stay)
	}
	if part := faulty / clean; part < 0.95*stay {
		t.Errorf("%.3f of the clients stay, and goodput is %.3f of that without faults", stay, part)
	}
}

// goodput is how many answers a second are given for so long, and the part of the
// clients that wait for theirs.
func goodput(t *testing.T, span time.Duration, f Faults) (rate, stay float64) {
	s, err := pairStorm(30, f)
	if err != nil {
		t.Fatal(err)
	}
	for s.Now < span {
		for s.live() < 24 {
			s.send()
		}
		if err := errors.Join(s.strike(), s.tick()); err != nil {
			t.Fatal(err)
		}
	}
	end := s.Now
	settle(t, s.Cluster)
	if err := s.Verify(); err != nil {
		t.Fatal(err)
	}
	s.count()
	failed := 0
	for code, n := range s.Log.Failed {
		switch code {
		case request.DeadlineExceeded:
		case request.EngineDead, request.StepFailed: // the injected ones, if they hit twice or too often
			failed += n
		default:
			t.Errorf("%d choices ended with %s", n, code)
		}
	}
	left := s.Log.Choices - s.Log.Complete - failed
	t.Logf("%d choices in %v, %d left, %d failed: %+v", s.Log.Choices, end, left, failed, s.Log)
	return float64(s.Log.Complete) / end.Seconds(), 1 - float64(left)/float64(s.Log.Choices)
}

// pairStorm is a Storm over workers with the defaults.
func pairStorm(seed uint64, f Faults) (*Storm, error) {
	s, err := NewStorm(seed)
	if err != nil {
		return nil, err
	}
	var pair [2]*Worker
	for i, role := range []executor.Role{executor.Ctx, executor.Gen} {
		c := pairConfig(role, 16, 256)
		c.PartialReuse, c.ShareInPass, c.Policy = true, true, scheduler.GuaranteedNoEvict
		if pair[i], err = NewWorker(c); err != nil {
			return nil, fmt.Errorf("%s: %w", role, err)
		}
		pair[i].CheckEvery = 16
	}
	s.Cluster, s.Faults = NewCluster(pair[0], pair[1], seed), f
	s.calm = s.Net
	for _, w := range pair {
		s.attend(w)
		w.Overlap = Eager
	}
	return s, nil
}
