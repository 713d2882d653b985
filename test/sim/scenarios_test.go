package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/scheduler"
)

// scenarios names the tests of the engine core's acceptance scenarios, as
// folder of the repository: name of the test or benchmark.
var scenarios = [31][]string{
	1:  {"test/sim: TestScenario01BlockArithmetic"},
	2:  {"test/sim: TestScenario02PoliciesSmall"},
	3:  {"test/sim: TestScenario03PoliciesLoad"},
	4:  {"test/sim: TestScenario04LongOutputs"},
	5:  {"test/sim: TestScenario05ChunkedPrefill"},
	6:  {"test/sim: TestScenario06Mixing", "test/sim: TestPrefillCapInMixedSteps"},
	7:  {"test/sim: TestScenario07EqualProgress"},
	8:  {"test/sim: TestScenario08SamePassSharing", "test/sim: TestSharerOutlivesCancelledLeader"},
	9:  {"test/sim: TestScenario09ReuseArithmetic"},
	10: {"test/sim: TestScenario10Isolation", "engine/blockhash: TestScenario10RootsShareNothing", "engine/blockhash: TestVectors"},
	11: {"test/sim: TestScenario11EvictionOrder", "engine/kvcache: TestPriorityKeepsBlocks"},
	12: {"test/sim: TestScenario12CancelStorm", "test/handover: TestScenario12CancelStormLeavesNothing"},
	13: {"test/sim: TestScenario13LostPeer"},
	14: {"test/sim: TestScenario14LateAbort"},
	15: {"test/sim: TestScenario15StaleLease"},
	16: {
		"engine/transfer/wire: TestScenario16Numbers", "engine/transfer/wire: TestScenario16OwnersTakeTurns", "engine/transfer/wire: TestScenario16Divisions",
		"engine/transfer/wire: TestScenario16BlockSizes", "engine/transfer/wire: TestScenario16DataParallelRanks", "test/parallel: TestHandOversBetweenDivisions",
	},
	17: {"test/sim: TestScenario17GenSideReuse"},
	18: {"test/sim: TestScenario18PipelinedPull", "test/handover: TestPipelinedPull"},
	19: {"test/sim: TestScenario19Fences", "test/sim: TestNobodyIsPausedForBlocksThatComeBack"},
	20: {"test/sim: TestLockstepInstance"},
	21: {"test/sim: TestDivergenceIsReported"},
	22: {"test/metamorphic: TestScenario22Seeds", "engine/sampler: TestDrawVectors"},
	23: {"test/sim: TestOverlapChangesNothing", "test/parallel: TestOverlapOnTheCPU"},
	24: {"test/sim: TestScenario24StopRules", "test/sim: TestOverlapHidesOneStep"},
	25: {
		"test/handover: TestScenario25GuidedAmongFree", "engine/runner: TestMasksAreMadeBesideTheStep", "test/e2e: TestScenario25Guided",
		"test/e2e: TestSoakGuided",
	},
	26: {"test/sim: TestScenario26StepFailure", "test/sim: TestTenFailedStepsAreFatal"},
	27: {"engine/executor: TestLedgerDemotesReasoning", "engine/kvcache: TestLedgerFindsDeadTails"},
	28: {"engine/kvcache: TestEventsGiveTheIndex", "engine/kvcache: TestEventsTellOfAGap"},
	29: {
		"engine/executor: BenchmarkDecode256Waiting1000", "engine/executor: TestSteadyDecodeDoesNotAllocate",
		"engine/blockhash: BenchmarkPrompt131072",
	},
	30: {"test/sim: TestScenario30Goodput", "test/sim: TestSoakStorm", "test/e2e: TestSoak"},
}

// TestCoreScenariosAreAllHere proves that every scenario has tests, under the
// names that scenarios has.
func TestCoreScenariosAreAllHere(t *testing.T) {
	entry, where := regexp.MustCompile(`^(\S+): (\w+)$`), map[string]string{}
	for n := 1; n < len(scenarios); n++ {
		if len(scenarios[n]) == 0 {
			t.Errorf("scenario %d has no test", n)
		}
		for _, name := range scenarios[n] {
			m := entry.FindStringSubmatch(name)
			if m == nil {
				t.Fatalf("scenario %d: %q is not folder: name", n, name)
			}
			if _, ok := where[m[1]]; !ok {
				where[m[1]] = tests(t, m[1])
			}
			if !regexp.MustCompile(`(?m)^func ` + m[2] + `\(`).MatchString(where[m[1]]) {
				t.Errorf("scenario %d: %s has no %s", n, m[1], m[2])
			}
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
