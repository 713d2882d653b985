package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
)

// still is a device that always says token 1.
type still struct{}

func (still) Run(b *tensor.Batch) ([]float32, error) {
	out := make([]float32, len(b.LogitRows)*8)
	for i := range b.LogitRows {
		out[i*8+1] = 1
	}
	return out, nil
}
func (still) CopyBlockPrefix(int32, int32, int) error { return nil }
func (still) Check(*tensor.Batch) error               { return nil }
func (still) Progress() uint64                        { return 0 }

// eventRig is a worker over a real engine with blocks of 4 tokens.
func eventRig(t *testing.T, buffer int) (*Server, string, func(prompt ...int32)) {
	t.Helper()
	c := executor.DefaultConfig()
	c.Vocab, c.Blocks, c.BlockTokens, c.MaxSeqLen, c.Namespace, c.EventBuffer = 8, 16, 4, 64, "m@0", buffer
	c.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 16, DType: "F32", BlockTokens: 4}
	e, err := runner.New(runner.Config{Core: c, Info: runner.Info{Model: "m", Vocab: 8, MaxSeqLen: 64, Incarnation: "i1"}}, still{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	s := New(Config{})
	s.Attach(Backend{Engine: FromRunner(e)})
	srv := newServer(t, s)
	t.Cleanup(func() {
		s.Drain() // ends streams
		cancel()
		<-done
	})
	return s, srv.URL + "/kv_cache_events", func(prompt ...int32) {
		t.Helper()
		sampling := request.DefaultSampling()
		sampling.Temperature = 0
		st, err := e.Submit(ctx, &request.Request{ID: e.NewID(), Prompt: prompt, MaxTokens: 1, Sampling: sampling, DPRank: -1}, nil)
		for err == nil {
			var o runner.Output
			if o, err = st.Next(ctx); err == nil && o.Finish != request.Running {
				return
			}
		}
		t.Fatal(err)
	}
}

type gotEvent struct {
	ID   uint64 `json:"event_id"`
	Rank *int   `json:"attention_dp_rank"`
	Gap  bool   `json:"gap"`
	Data struct {
		Type        string   `json:"type"`
		HashAlgo    string   `json:"hash_algo"`
		Incarnation string   `json:"incarnation"`
		Pool        []int    `json:"num_blocks_per_cache_level"`
		Hashes      []uint64 `json:"block_hashes"`
		Blocks      []struct {
			Hash uint64 `json:"block_hash"`
		} `json:"blocks"`
	} `json:"data"`
}

func drained(t *testing.T, url string) (out []gotEvent) {
	t.Helper()
	resp, err := http.Post(url, "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%d, %v", resp.StatusCode, err)
	}
	return out
}

func types(events []gotEvent) (out []string) {
	for _, e := range events {
		out = append(out, e.Data.Type)
	}
	return out
}

func TestEventsAreDrained(t *testing.T) {
	_, url, prompt := eventRig(t, 4)
	prompt(2, 2, 2, 2, 3, 3, 3, 3, 4)
	first := drained(t, url)
	if !slices.Equal(types(first), []string{"created", "stored"}) || len(first[1].Data.Blocks) != 2 || first[1].ID != first[0].ID+1 {
		t.Fatalf("first %+v", first)
	}
	if d := first[0].Data; d.HashAlgo != "tandem-kv1" || d.Incarnation != "i1" || !slices.Equal(d.Pool, []int{16}) || *first[0].Rank != 0 {
		t.Errorf("created %+v", first[0])
	}
	if more := drained(t, url); len(more) != 0 {
		t.Errorf("nothing happened: %+v", more)
	}
	prompt(5, 5, 5, 5, 4)
	if more := drained(t, url); len(more) != 1 || more[0].Gap || more[0].ID != first[1].ID+1 {
		t.Errorf("one block: %+v", more)
	}
	for i := range 8 { // more than the buffer holds, and evictions
		prompt(int32(i), 1, int32(i), 1, int32(i), 2, int32(i), 2, 0)
	}
	lost := drained(t, url)
	if types(lost)[0] != "created" || !lost[0].Gap {
		t.Errorf("after lost events: %+v", lost)
	}
}

// stream reads events until it has n of them.
func stream(t *testing.T, r io.Reader, n int) (out []gotEvent) {
	t.Helper()
	sc := bufio.NewScanner(r)
	for len(out) < n && sc.Scan() {
		if data, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
			var e gotEvent
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatal(err)
			}
			out = append(out, e)
		}
	}
	return out
}

func TestEventsAreStreamedToMany(t *testing.T) {
	s, url, prompt := eventRig(t, 100)
	prompt(2, 2, 2, 2, 0)
	var readers []io.Reader
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url+"?snapshot=1", nil)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		readers = append(readers, bufio.NewReader(resp.Body))
	}
	for i, r := range readers {
		got := stream(t, r, 2)
		if !slices.Equal(types(got), []string{"created", "stored"}) || got[0].Gap {
			t.Errorf("reader %d: %+v", i, got)
		}
	}
	if len(drained(t, url)) != 2 {
		t.Error("a stream took events away")
	}
	s.Drain()
	for i, r := range readers {
		if _, err := io.ReadAll(r); err != nil {
			t.Errorf("reader %d is not ended by a drain: %v", i, err)
		}
	}
}

func TestEventsRefusals(t *testing.T) {
	_, url, _ := eventRig(t, 100)
	for query, want := range map[string]int{"rank=1": 400, "rank=x": 400, "from=0": 400, "from=x": 400} {
		if got := statusOf(t, url+"?"+query); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
	_, off, _ := eventRig(t, 0)
	if got := statusOf(t, off); got != 404 {
		t.Errorf("events are off: %d", got)
	}
}

func statusOf(t *testing.T, url string) int {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}
