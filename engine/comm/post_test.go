package comm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// inboxOf collects posts by sender process.
type inboxOf struct {
	mu  sync.Mutex
	got map[Span][]string
}

func (in *inboxOf) put(from Span, msg []byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.got == nil {
		in.got = map[Span][]string{}
	}
	in.got[from] = append(in.got[from], string(msg))
}

func (in *inboxOf) count() (n int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, m := range in.got {
		n += len(m)
	}
	return n
}

// TestPostsArriveInOrder has several goroutines of every process post between
// the collectives; each one's messages must come in its order, and all of them
// before an exchange that follows.
func TestPostsArriveInOrder(t *testing.T) {
	for _, l := range []layout{{1}, {4}, {1, 1}, {2, 2}, {1, 2, 1}} {
		t.Run(l.String(), func(t *testing.T) {
			in := &inboxOf{}
			w := newWorld(t, l, Config{OnPost: in.put})
			const laps, posters, each = 5, 3, 20
			w.all(t, func(c Comm) error {
				for lap := range uint64(laps) {
					var wg sync.WaitGroup
					for p := range posters {
						wg.Go(func() { postMany(t, c, p, int(lap)*each, each) })
					}
					wg.Wait()
					if _, err := c.Exchange(t.Context(), record(c, lap)); err != nil {
						return err
					}
					if want := c.Size() * posters * each * int(lap+1); c.ID() == 0 && in.count() != want {
						return fmt.Errorf("%d posts came before exchange %d, want %d", in.count(), lap, want)
					}
					if err := c.Barrier(t.Context()); err != nil {
						return err
					}
				}
				return nil
			})
			for _, g := range w.groups {
				checkOrder(t, g.Ranks(), in.got[g.Ranks()], laps*posters*each)
			}
		})
	}
}

func postMany(t *testing.T, c Comm, poster, first, n int) {
	msg := []byte{}
	for i := range n {
		msg = fmt.Appendf(msg[:0], "%d.%d %d", c.ID(), poster, first+i)
		if err := c.Post(msg); err != nil {
			t.Error(err)
		}
		clear(msg) // it is the caller's
	}
}

func checkOrder(t *testing.T, from Span, got []string, each int) {
	t.Helper()
	next := map[string]int{}
	for _, m := range got {
		who, number, _ := strings.Cut(m, " ")
		if number != fmt.Sprint(next[who]) {
			t.Fatalf("%v: %q came, want number %d", from, m, next[who])
		}
		next[who]++
	}
	if len(got) != from.Len()*each {
		t.Errorf("%v: %d posts came, want %d", from, len(got), from.Len()*each)
	}
}

// TestPostNeedsNoCollective posts while no rank meets another.
func TestPostNeedsNoCollective(t *testing.T) {
	came := make(chan string, 1)
	w := newWorld(t, layout{1, 2}, Config{OnPost: func(from Span, msg []byte) { came <- fmt.Sprint(from, " ", string(msg)) }})
	for _, c := range w.ranks {
		if err := c.Post([]byte{'0' + byte(c.ID())}); err != nil {
			t.Fatal(err)
		}
		want := []string{"rank 0 0", "ranks 1-2 1", "ranks 1-2 2"}[c.ID()]
		if got := <-came; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestLastPostsArrive has a process post and leave at once.
func TestLastPostsArrive(t *testing.T) {
	for _, who := range []int{1, 2} {
		in := &inboxOf{}
		w := newWorld(t, layout{1, 1, 1}, Config{OnPost: in.put})
		for i := range 200 {
			if err := w.ranks[who].Post(binary.LittleEndian.AppendUint32(nil, uint32(i))); err != nil {
				t.Fatal(err)
			}
		}
		_ = w.ranks[who].Close()
		<-w.groups[0].Done()
		w.close()
		if n := in.count(); n != 200 {
			t.Errorf("%d posts of 200 came", n)
		}
	}
}

func TestPostAfterTheEnd(t *testing.T) {
	for _, l := range []layout{{2}, {1, 1}} {
		w := newWorld(t, l, Config{OnPost: func(Span, []byte) {}})
		w.ranks[1].Fail(errors.New("out of paper"))
		for r, c := range w.ranks {
			<-w.of[r].Done()
			if err := c.Post([]byte("x")); err == nil || !errors.Is(err, w.of[r].Err()) {
				t.Errorf("%v rank %d: %v", l, r, err)
			}
		}
	}
}

// TestPostWhileItEnds lets the race detector see posts of all processes and the
// end of the group; after Close nothing may come.
func TestPostWhileItEnds(t *testing.T) {
	for round := range 10 {
		var closed bool // written without a lock, after all groups are closed
		w := newWorld(t, layout{2, 2, 1}, Config{OnPost: func(Span, []byte) {
			if closed {
				t.Error("a post after Close")
			}
		}})
		var wg sync.WaitGroup
		for _, c := range w.ranks {
			wg.Go(func() {
				for c.Post([]byte("hello")) == nil {
				}
			})
		}
		w.ranks[round%5].Fail(errors.New("now"))
		wg.Wait()
		w.close()
		closed = true
	}
}

func TestPostBounds(t *testing.T) {
	for _, l := range []layout{{1}, {1, 1}} {
		in := &inboxOf{}
		w := newWorld(t, l, Config{MaxPayload: 100, OnPost: in.put})
		c := w.ranks[len(w.ranks)-1]
		if err := c.Post(make([]byte, 101)); err == nil || !strings.Contains(err.Error(), "posts 101 bytes, at most 100") {
			t.Error(err)
		}
		for range 50 { // more than one message of the wire
			if err := c.Post(bytes.Repeat([]byte("a"), 100)); err != nil {
				t.Fatal(err)
			}
		}
		w.all(t, func(c Comm) error { return c.Barrier(t.Context()) })
		if in.count() != 50 {
			t.Errorf("%d posts", in.count())
		}
	}
	// A process that does not keep to the bound ends the group.
	cfg := Config{Size: 2, MaxPayload: 10}
	cfg.setDefaults()
	h := newHub(cfg, Span{0, 0})
	h.posted(Span{1, 1}, [][]byte{make([]byte, 11)})
	if !h.bar.over() || !errors.Is(h.cause(), ErrDivergence) {
		t.Error("an oversized post was taken")
	}
}

// TestPostToADeafRoot fills the network and then the outbox: the poster is never
// held up, and the group ends.
func TestPostToADeafRoot(t *testing.T) {
	hold := make(chan struct{})
	w := newWorld(t, layout{1, 1}, Config{MaxPayload: 1 << 20, OnPost: func(Span, []byte) { <-hold }})
	within(t, time.Minute, func() {
		for err := error(nil); err == nil; {
			if err = w.ranks[1].Post(make([]byte, 1<<18)); err != nil && !errors.Is(err, ErrLost) {
				t.Error(err)
			}
		}
	})
	close(hold)
}

func TestWorkIsNoHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		busy := 400 * time.Second
		w := newWorld(t, layout{2}, Config{Work: func() uint64 { return uint64(min(time.Since(start), busy) / (10 * time.Second)) }})
		w.all(t, func(c Comm) error {
			if c.ID() == 1 {
				time.Sleep(busy)
			}
			return c.Barrier(t.Context())
		})
		errs := w.each(func(c Comm) error {
			if c.ID() == 1 {
				return nil
			}
			return c.Barrier(t.Context())
		})
		if !errors.Is(errs[0], ErrTimeout) {
			t.Errorf("work that stands still: %v", errs[0])
		}
		w.close()
	})
}
