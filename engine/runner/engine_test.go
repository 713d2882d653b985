package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
)

const vocab = 50

// counting is a device whose next token is the last token plus one. hold, if
// set, is received from before every run; fail, if set, makes a run fail.
type counting struct {
	hold   chan struct{}
	ran    chan int // rows of each run, if set
	fail   func(rows int) error
	logits []float32
	moved  atomic.Uint64
}

func (d *counting) Run(b *tensor.Batch) ([]float32, error) {
	if d.ran != nil {
		d.ran <- b.Rows()
	}
	if d.hold != nil {
		<-d.hold
	}
	if d.fail != nil {
		if err := d.fail(b.Rows()); err != nil {
			return nil, err
		}
	}
	d.logits = make([]float32, len(b.LogitRows)*vocab)
	for i, row := range b.LogitRows {
		d.logits[i*vocab+int(b.Tokens[row]+1)%vocab] = 1
	}
	return d.logits, nil
}

func (d *counting) CopyBlockPrefix(int32, int32, int) error { return nil }
func (d *counting) Check(*tensor.Batch) error               { return nil }
func (d *counting) Progress() uint64                        { return d.moved.Load() }

func start(t *testing.T, d Device) (*Engine, chan error) {
	t.Helper()
	core := executor.DefaultConfig()
	core.Vocab, core.Blocks, core.MaxSeqLen, core.Namespace = vocab, 64, 256, "test@0"
	core.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 16, DType: "F32", BlockTokens: 16}
	if laneOfTests != "" && laneOfTests != "aside" {
		d = &launching{Device: d, late: laneOfTests == "launched late"}
	}
	e, err := New(Config{Core: core, Info: Info{Vocab: vocab}, Overlap: laneOfTests != ""}, d, nil)
	if err != nil {
		t.Fatal(err)
	}
	died := make(chan error, 1)
	go func() { died <- e.Run(context.WithoutCancel(t.Context())) }()
	return e, died
}

func stop(t *testing.T, e *Engine, died chan error) {
	t.Helper()
	end(t, e, died)
	goleak.VerifyNone(t)
}

// end is stop for a bubble of synctest, which finds goroutines that stay itself.
func end(t *testing.T, e *Engine, died chan error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	e.Shutdown(ctx)
	if err := <-died; err != nil {
		t.Fatal(err)
	}
}

func greedy(e *Engine, maxTokens int, prompt ...int32) *request.Request {
	s := request.DefaultSampling()
	s.Temperature = 0
	return &request.Request{ID: e.NewID(), Prompt: prompt, MaxTokens: maxTokens, Sampling: s, DPRank: -1}
}

// collect reads a stream to its end.
func collect(t *testing.T, s *Stream) (ids []int32, last Output) {
	t.Helper()
	for {
		o, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, tok := range o.Tokens {
			ids = append(ids, tok.ID)
		}
		if o.Finish != request.Running {
			return ids, o
		}
	}
}

func TestEngineGenerates(t *testing.T) {
	e, died := start(t, &counting{})
	var streams []*Stream
	for i := range 5 {
		s, err := e.Submit(t.Context(), greedy(e, 4, int32(i), int32(i+10)), nil)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	for i, s := range streams {
		ids, last := collect(t, s)
		want := fmt.Sprint([]int{i + 11, i + 12, i + 13, i + 14})
		if fmt.Sprint(ids) != want || last.Finish != request.FinishLength || last.Usage.CompletionTokens != 4 {
			t.Errorf("request %d: %v %q %+v, want %s", i, ids, last.Finish, last.Usage, want)
		}
	}
	stop(t, e, died)
}

func TestSubmitReportsRefusal(t *testing.T) {
	e, died := start(t, &counting{})
	_, err := e.Submit(t.Context(), greedy(e, 4, vocab+7), nil)
	var re *request.Error
	if !errors.As(err, &re) || re.Code != request.InvalidRequest {
		t.Fatalf("a token outside the vocabulary gave %v", err)
	}
	r := greedy(e, 4, 1)
	r.Kind = request.ContextOnly
	if _, err := e.Submit(t.Context(), r, nil); err == nil || !strings.Contains(err.Error(), "cache_transceiver_config") {
		t.Fatalf("a split request without transfer gave %v", err)
	}
	stop(t, e, died)
}

func TestCancelDuringAStepAndBeforeAdmission(t *testing.T) {
	d := &counting{hold: make(chan struct{}), ran: make(chan int, 1000)}
	e, died := start(t, d)
	s, err := e.Submit(t.Context(), greedy(e, 100, 1, 2), nil)
	if err != nil {
		t.Fatal(err)
	}
	<-d.ran // the first step runs
	s.Cancel()

	// A submitter that gives up while the engine is busy leaves nothing behind.
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		s, err := e.Submit(ctx, greedy(e, 100, 3), nil)
		if err == nil { // the loop took it in beside the step, before it was abandoned
			s.Cancel()
		}
		gone <- err
	}()
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) && (laneOfTests == "" || err != nil) {
		t.Fatalf("an abandoned submit returned %v", err)
	}
	d.hold <- struct{}{}
	ids, last := collect(t, s)
	if last.Finish != request.FinishCancelled || len(ids) != 0 {
		t.Fatalf("cancelled in its first step: %v, %q", ids, last.Finish)
	}
	close(d.hold)
	stop(t, e, died)
	if st := e.Stats(time.Second); st.BlocksActive != 0 || st.Alive != 0 {
		t.Fatalf("left behind: %+v", st)
	}
}

func TestNextEndsWithItsContext(t *testing.T) {
	d := &counting{hold: make(chan struct{}), ran: make(chan int, 1000)}
	e, died := start(t, d)
	s, err := e.Submit(t.Context(), greedy(e, 200, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Next returned %v", err)
	}
	close(d.hold)
	if _, last := collect(t, s); last.Finish != request.FinishCancelled {
		t.Fatalf("the request went on: %q", last.Finish)
	}
	stop(t, e, died)
}

func TestFailedStepEndsItsRequestsOnly(t *testing.T) {
	bad := true
	e, died := start(t, &counting{fail: func(int) error {
		if bad {
			return errors.New("kernel refused")
		}
		return nil
	}})
	s, err := e.Submit(t.Context(), greedy(e, 3, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, last := collect(t, s); last.Finish != request.FinishError || last.Err.Code != request.StepFailed {
		t.Fatalf("ended %q %v", last.Finish, last.Err)
	}
	bad = false
	if s, err = e.Submit(t.Context(), greedy(e, 3, 1), nil); err != nil {
		t.Fatal(err)
	}
	if _, last := collect(t, s); last.Finish != request.FinishLength {
		t.Fatalf("the next request ended %q %v", last.Finish, last.Err)
	}
	stop(t, e, died)
}

func TestPanicEndsEveryRequest(t *testing.T) {
	e, died := start(t, &counting{fail: func(int) error { panic("broken invariant") }})
	s, err := e.Submit(t.Context(), greedy(e, 3, 1), nil)
	if err != nil && !errors.Is(err, ErrStopped) {
		t.Fatal(err)
	}
	if err == nil {
		if _, last := collect(t, s); last.Err == nil || last.Err.Code != request.EngineDead {
			t.Fatalf("ended %q %v", last.Finish, last.Err)
		}
	}
	if err := <-died; err == nil || !strings.Contains(err.Error(), "broken invariant") {
		t.Fatalf("Run returned %v", err)
	}
	if _, err := e.Submit(t.Context(), greedy(e, 3, 1), nil); !errors.Is(err, ErrStopped) {
		t.Fatalf("a dead engine took a request: %v", err)
	}
	if h := e.Stats(time.Second).Health; h != HealthDead {
		t.Fatalf("health is %q", h)
	}
	goleak.VerifyNone(t)
}

func TestShutdownLetsRequestsFinish(t *testing.T) {
	d := &counting{hold: make(chan struct{}), ran: make(chan int, 1000)}
	e, died := start(t, d)
	s, err := e.Submit(t.Context(), greedy(e, 5, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	<-d.ran
	done := make(chan struct{})
	go func() { e.Shutdown(t.Context()); close(done) }()
	close(d.hold)
	ids, last := collect(t, s)
	if len(ids) != 5 || last.Finish != request.FinishLength {
		t.Fatalf("draining cut the request short: %v %q", ids, last.Finish)
	}
	<-done
	if err := <-died; err != nil {
		t.Fatal(err)
	}
	goleak.VerifyNone(t)
}

func TestLongStepIsNoStall(t *testing.T) {
	d := &counting{hold: make(chan struct{}), ran: make(chan int, 1000)}
	e, died := start(t, d)
	if _, err := e.Submit(t.Context(), greedy(e, 1, 1), nil); err != nil {
		t.Fatal(err)
	}
	<-d.ran // the step runs and will not end by itself
	if h := e.Stats(0).Health; h != HealthStalled {
		t.Errorf("a step without headway is %q", h)
	}
	d.moved.Add(1)
	if h := e.Stats(time.Hour).Health; h != HealthOK {
		t.Errorf("a step within its time is %q", h)
	}
	d.moved.Add(1)
	before := e.status.moved
	if e.Stats(time.Hour); e.status.moved == before {
		t.Error("headway of the device was not noticed")
	}
	close(d.hold)
	stop(t, e, died)
}
