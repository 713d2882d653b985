package des

import (
	"time"

	"tandem/engine/executor"
)

// Record is one request in virtual time since the start of the run.
type Record struct {
	ID           string // of the workload
	Seq          int    // number in the run
	Conversation string
	Parent       string
	In, Out      int // tokens
	Asked        int // output tokens
	Cached       int // prompt tokens that the ctx rank did not compute
	Error        string
	Sched, Send  time.Duration
	First        time.Duration // first token at the client
	Second       time.Duration // of two or more
	Last, End    time.Duration

	// Stages of a request that ended well.
	QueueCtx time.Duration // from the worker until it is part of a batch
	Prefill  time.Duration
	Handed   time.Duration // when the frontend had the ctx answer; 0 = one leg only
	Room     time.Duration // from there until the gen worker had room and ordered the blocks
	Pulled   time.Duration // the pull took

	Ctx, CtxRank int
	Gen, GenRank int
	CtxWhy       string // why this instance
	RankWhy      string // why this rank
	GenWhy       string

	inside bool // sent in the measured time
	warm   bool // not measured
}

// TTFT is the time from sending to the first token.
func (r *Record) TTFT() time.Duration { return r.First - r.Send }

// TPOT is the mean time between two tokens, 0 for a single one.
func (r *Record) TPOT() time.Duration {
	if r.Out < 2 {
		return 0
	}
	return (r.Last - r.First) / time.Duration(r.Out-1)
}

// E2E is the time from sending to the last token.
func (r *Record) E2E() time.Duration { return r.Last - r.Send }

func (r *Record) stages(t executor.Times) {
	if t.Scheduled > 0 {
		r.QueueCtx = t.Scheduled - r.Send
	}
	if t.First > 0 {
		r.Prefill = t.First - t.Scheduled
	}
}
