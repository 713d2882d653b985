package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"tandem/engine/comm"
	"tandem/engine/request"
	"tandem/engine/tensor"
)

// tensorDevice is a counting device whose passes need all ranks.
type tensorDevice struct {
	counting
	comm  comm.Comm
	spoil func(b *tensor.Batch) error
	check func(b *tensor.Batch) error
	copy  func() error
}

func (d *tensorDevice) Run(b *tensor.Batch) ([]float32, error) {
	if d.spoil != nil {
		if err := d.spoil(b); err != nil {
			return nil, err
		}
	}
	if err := d.comm.AllReduce(context.Background(), make([]float32, 4)); err != nil {
		return nil, err
	}
	return d.counting.Run(b)
}

func (d *tensorDevice) Check(b *tensor.Batch) error {
	if d.check != nil {
		return d.check(b)
	}
	return nil
}

func (d *tensorDevice) CopyBlockPrefix(int32, int32, int) error {
	if d.copy != nil {
		return d.copy()
	}
	return nil
}

// newTensor makes an instance of ranks that share each request.
func newTensor(t *testing.T, size int, c comm.Config) (*Engine, []*tensorDevice, chan error) {
	t.Helper()
	c.Size = size
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	group, err := comm.NewLocal(c)
	if err != nil {
		t.Fatal(err)
	}
	tg := &tensorGroup{group: group}
	var devices []*tensorDevice
	for rank := range size {
		d := &tensorDevice{comm: group.Rank(rank)}
		devices = append(devices, d)
		if rank > 0 {
			tg.followers = append(tg.followers, &follower{id: rank, size: size, device: d, comm: group.Rank(rank)})
		}
	}
	tg.leader = &tensorLeader{Device: devices[0], comm: group.Rank(0), size: size, local: []Device{devices[0]}}
	cfg := Config{Core: testCore(), Info: Info{Vocab: vocab, Leader: true, TensorRanks: size}, Idle: 20 * time.Millisecond}
	e, err := New(cfg, tg.leader, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.tensor = tg
	died := make(chan error, 1)
	go func() { died <- e.Run(context.WithoutCancel(t.Context())) }()
	return e, devices, died
}

func TestTensorRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _, died := newTensor(t, 3, comm.Config{Timeout: 200 * time.Millisecond})
		for range 3 {
			time.Sleep(time.Second) // of the bubble's clock
			s, err := e.Submit(t.Context(), greedy(e, 4, 1, 2), nil)
			if err != nil {
				t.Fatal(err)
			}
			if ids, last := collect(t, s); len(ids) != 4 || last.Finish != request.FinishLength {
				t.Fatalf("after a rest: %v %q %v", ids, last.Finish, last.Err)
			}
		}
		end(t, e, died)
	})
}

// What goes wrong on one rank ends all at once, also those that wait for it in a
// pass.
func TestTensorFalls(t *testing.T) {
	broken := errors.New("a broken device")
	for _, c := range []struct {
		name  string
		spoil func(devices []*tensorDevice)
	}{
		{"the leader's copy fails", func(d []*tensorDevice) { d[0].copy = func() error { return broken } }},
		{"a follower's copy fails", func(d []*tensorDevice) { d[1].copy = func() error { return broken } }},
		{"the leader's pass fails", func(d []*tensorDevice) {
			d[0].spoil = func(*tensor.Batch) error { return broken }
		}},
		{"a follower's pass fails", func(d []*tensorDevice) {
			d[1].spoil = func(*tensor.Batch) error { return broken }
		}},
		{"the leader panics", func(d []*tensorDevice) {
			d[0].spoil = func(*tensor.Batch) error { panic(broken) }
		}},
		{"a follower panics", func(d []*tensorDevice) {
			d[2].spoil = func(*tensor.Batch) error { panic(broken) }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const limit = 2 * time.Minute
			e, devices, died := newTensor(t, 3, comm.Config{Timeout: limit})
			warm := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24}
			s, err := e.Submit(t.Context(), greedy(e, 2, warm...), nil)
			if err != nil {
				t.Fatal(err)
			}
			collect(t, s)
			c.spoil(devices)
			began := time.Now()
			// It shares a part of a block with the first one.
			s, err = e.Submit(t.Context(), greedy(e, 20, append(warm[:12:12], 40, 41, 42, 43, 44, 45)...), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, last := collect(t, s); last.Err == nil {
				t.Errorf("the request ended %q", last.Finish)
			}
			if err := <-died; !strings.Contains(fmt.Sprint(err), "a broken device") {
				t.Errorf("the engine ended with %v", err)
			}
			if took := time.Since(began); took > limit/2 {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// A batch that the leader finds wrong costs its requests, not the group.
func TestTensorRefusesABadBatch(t *testing.T) {
	e, devices, died := newTensor(t, 2, comm.Config{})
	devices[0].check = func(b *tensor.Batch) error {
		if slices.Contains(b.Tokens, 13) {
			return errors.New("no such block")
		}
		return nil
	}
	for _, first := range []int32{1, 13, 2} {
		s, err := e.Submit(t.Context(), greedy(e, 2, first, 30), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, last := collect(t, s); (last.Err != nil) != (first == 13) {
			t.Errorf("token %d: %q %v", first, last.Finish, last.Err)
		}
	}
	stop(t, e, died)
}

// A process without rank 0 leaves when it is told to.
func TestTensorFollowersLeave(t *testing.T) {
	group, err := comm.NewLocal(comm.Config{Size: 2, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(Config{Core: testCore(), Info: Info{TensorRanks: 2}})
	e.tensor = &tensorGroup{group: group, followers: []*follower{{id: 1, size: 2, device: &counting{}, comm: group.Rank(1)}}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	cancel()
	within(t, 2*time.Minute, func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	goleak.VerifyNone(t)
}
