//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// broken are requests whose streams a dying gen worker breaks: greedy, drawn with a seed, with a stop string, with penalties.
func broken() (out []sample) {
	for i := range 8 {
		name, prompt := fmt.Sprintf("stream %d", i), prose(uint64(100+i), 40+10*i)
		more := []any{"max_tokens", 80, "ignore_eos", true}
		switch i % 4 {
		case 1:
			more = append(more, "temperature", 0.8, "seed", 7+i)
		case 2:
			more = append(more, "stop", []string{"zzzz", "never said"}, "frequency_penalty", 0.5)
		case 3:
			more = append(more, "temperature", 1, "seed", i, "top_p", 0.9, "logprobs", 1)
		}
		out = append(out, sampleOf(name, "/v1/completions", prompt, more...))
	}
	return out
}

// TestResume kills the gen worker that all streams run on, without warning. They go on at another one, and what the clients
// have in the end is what an undisturbed run says.
func TestResume(t *testing.T) {
	for name, yaml := range map[string]string{"context first": "", "generation first": genFirst} {
		t.Run(name, func(t *testing.T) { resume(t, yaml) })
	}
}

func resume(t *testing.T, yaml string) {
	t.Helper()
	ctxWorker := startWorker(t, "ctx", workerConfig{})
	first, second := startWorker(t, "gen", workerConfig{}), startWorker(t, "gen", workerConfig{})
	front := startFrontend(t, []*process{ctxWorker}, []*process{first, second}, yaml)
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	samples := broken()
	want := run(t, samples, pass{"undisturbed", front.url, true, streams})
	if t.Failed() {
		return
	}
	got := make([]*result, len(samples))
	errs := make([]error, len(samples))
	var begun, done sync.WaitGroup
	begun.Add(len(samples))
	for i, s := range samples {
		done.Go(func() { got[i], errs[i] = askTelling(ctx, front.url, s, 5, begun.Done) })
	}
	begun.Wait()
	first.signal(t, syscall.SIGKILL)
	done.Wait()
	for i, s := range samples {
		if errs[i] != nil {
			t.Errorf("%s: %v", s.name, errs[i])
			continue
		}
		got[i].header, want[i].header, got[i].cached, want[i].cached = nil, nil, 0, 0
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("%s:\n%+v\nundisturbed\n%+v", s.name, got[i], want[i])
		}
	}
	resumed := func() bool {
		return strings.Contains(get(t, front.url+"/metrics"), `tandem_streams_resumed_total{outcome="resumed"}`)
	}
	if !eventually(settleLimit, resumed) { // it counts after the client has read the end
		t.Error("no stream was resumed: the test shows nothing")
	}
	waitClean(t, settleLimit, ctxWorker, second)
	idleGauges(t, front)
}

// askTelling streams a sample's answer and calls begun when n chunks are there.
func askTelling(ctx context.Context, base string, s sample, n int, begun func()) (*result, error) {
	defer func() {
		if n > 0 {
			begun()
		}
	}()
	resp, err := post(ctx, base+s.path, s.streamed(true))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	r := &result{streamed: true}
	var first reply
	return r, streamOf(resp, func(a *reply) error {
		if n--; n == 0 {
			begun()
		}
		if first.ID == "" {
			first = *a
		}
		if a.ID != first.ID || a.Created != first.Created || a.Model != first.Model {
			return fmt.Errorf("id, created or model changed: %+v, then %+v", first, *a)
		}
		return r.add(a)
	})
}
