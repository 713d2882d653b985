package metrics

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tandem/engine/runner"
	"tandem/engine/transfer"
	"tandem/serve/disagg"
	"tandem/serve/router"
	"tandem/serve/worker"
)

// row is one line of a table of docs/metrics.md.
type row struct{ kind, labels, help string }

func pageRows(t *testing.T, heading string) map[string]row {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(text), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("docs/metrics.md has no heading %q", heading)
	}
	part, _, _ = strings.Cut(part, "\n## ")
	rows := map[string]row{}
	for line := range strings.Lines(part) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | ")
		if len(cells) != 4 || !strings.HasPrefix(cells[0], "`") {
			continue
		}
		name := strings.Trim(cells[0], "`")
		if _, twice := rows[name]; twice {
			t.Errorf("%s is twice below %s", name, heading)
		}
		rows[name] = row{cells[1], strings.TrimSpace(cells[2]), cells[3]}
	}
	return rows
}

// spy notes the names that a registry was given, also those that have no samples yet.
type spy struct {
	*prometheus.Registry
	names map[string]bool
}

func (s *spy) MustRegister(list ...prometheus.Collector) {
	for _, c := range list {
		ch := make(chan *prometheus.Desc)
		go func() { c.Describe(ch); close(ch) }()
		for d := range ch {
			_, name, _ := strings.Cut(d.String(), `fqName: "`)
			name, _, _ = strings.Cut(name, `"`)
			s.names[name] = true
		}
	}
	s.Registry.MustRegister(list...)
}

// compare holds the page against what the registry exposes; every metric must have a sample.
func (s *spy) compare(t *testing.T, heading string) {
	t.Helper()
	families, err := s.Gather()
	if err != nil {
		t.Fatal(err)
	}
	rows := pageRows(t, heading)
	for _, f := range families {
		delete(s.names, f.GetName())
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		slices.Sort(labels)
		got := row{strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), strings.TrimSuffix(f.GetHelp(), ".")}
		if rows[f.GetName()] != got {
			t.Errorf("%s: the page has %q, the registry %q", f.GetName(), rows[f.GetName()], got)
		}
		delete(rows, f.GetName())
	}
	for name := range rows {
		t.Errorf("docs/metrics.md has %s below %q; the registry does not", name, heading)
	}
	for name := range s.names {
		t.Errorf("the test gives %s no sample", name)
	}
}

func TestPageHasTheWorkerMetrics(t *testing.T) {
	reg := &spy{prometheus.NewRegistry(), map[string]bool{}}
	m := NewWorker(reg, func() (runner.Stats, runner.Info, bool) {
		return runner.Stats{Ranks: []runner.RankStats{{Placed: map[string]uint64{"new": 1}}}, Traffic: []transfer.Traffic{{Path: "shm"}}}, runner.Info{Router: "default"}, true
	})
	m.Done(worker.Observation{Endpoint: "chat", Kind: "full", Status: 200, Finish: "stop", Elapsed: time.Second})
	RegisterMembership(reg, func() (bool, uint64) { return true, 0 })
	reg.compare(t, "## Worker")
}

func TestPageHasTheFrontendMetrics(t *testing.T) {
	reg := &spy{prometheus.NewRegistry(), map[string]bool{}}
	m := NewFrontend(reg, func() (disagg.Snapshot, bool) {
		return disagg.Snapshot{
			Routers: map[string]disagg.RouterState{disagg.RoleContext: {
				Kind: "conversation", Stats: router.Stats{Decisions: map[router.Outcome]uint64{router.Sticky: 1}},
			}},
			Instances: []disagg.InstanceState{{Role: disagg.RoleContext, ID: "h:1"}},
			Warnings:  map[string]int{"W_PAIRING": 1},
		}, true
	})
	m.Happened(disagg.EventAbort, disagg.RoleContext, "timeout")
	m.Happened(disagg.EventDisconnect, "decode")
	m.Happened(disagg.EventGenSkipped, "stop")
	m.Happened(disagg.EventAffinity, disagg.RoleContext)
	m.Happened(disagg.EventResume, "resumed")
	m.Happened(disagg.EventKey, "a")
	m.Happened(disagg.EventHome, "found")
	m.Happened(disagg.EventNoPlace, "full")
	m.Happened(disagg.EventForcedRank, disagg.RoleContext, "engine")
	reg.compare(t, "## Frontend")
}
