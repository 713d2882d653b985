package executor

import (
	"testing"
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

func TestFinalOutputsTellTheTurningPoints(t *testing.T) {
	c, err := New(testConfig(Mixed))
	if err != nil {
		t.Fatal(err)
	}
	r := validRequest()
	r.MaxTokens = 2
	c.Submit(10*time.Millisecond, r, nil)
	at := 20 * time.Millisecond
	for b := c.Plan(at); b != nil; b = c.Plan(at) {
		at += 10 * time.Millisecond
		c.Apply(at, Result{Sampled: make([]Sampled, len(b.Rows))})
	}
	list := c.Effects().Outputs
	last := list[len(list)-1]
	want := Times{Arrived: 10 * time.Millisecond, Scheduled: 20 * time.Millisecond, First: 30 * time.Millisecond, Blocks: last.Times.Blocks}
	if last.Finish != request.FinishLength || last.Times != want || last.Times.Blocks == 0 {
		t.Errorf("%s: %+v, want %+v", last.Finish, last.Times, want)
	}
	if len(list) < 2 || list[0].Times != (Times{}) {
		t.Error("an output before the last has times")
	}
}

func TestTimesOfAPull(t *testing.T) {
	c, s := pulling(t, true, 40)
	c.PullEvent(30*time.Millisecond, transfer.PullEvent{ID: 5, Done: true, Progress: 3, OK: true})
	c.Plan(50 * time.Millisecond)
	if got := s.timesNow(); got.PullEnded != 30*time.Millisecond || got.First != 30*time.Millisecond || got.Scheduled != 50*time.Millisecond {
		t.Errorf("%+v", got)
	}
}
