package des

import (
	"fmt"

	"tandem/serve/conversation"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// Vocab is the number of token ids that simulated texts consist of.
const Vocab = 32768

// clients send the requests of a workload when the load model says.
type clients struct {
	s       *Sim
	w       *workload.Workload
	plan    *schedule.Schedule
	last    map[string]int  // conversation to its last request
	shared  map[uint64]bool // segments that stay when the workload is gone through again; nil = it is not
	talks   map[string]*talk
	alarm   uint64
	awaited int // requests of the measured time without an end
	sent    int
	live    int // requests without an end
	forced  int // rank named last by a wrapper
}

// talk is the history of a conversation as tokens, so that not all of them are
// made anew for each turn.
type talk struct {
	segments []workload.Segment
	tokens   []int32
	before   int // prompt tokens of the turn before, whose blocks a gen worker has
}

func (c *clients) init(s *Sim) (err error) {
	*c = clients{s: s, w: s.cfg.Workload, last: map[string]int{}, talks: map[string]*talk{}}
	for i := range c.w.Requests {
		c.last[c.w.Requests[i].Conversation] = i
	}
	if s.cfg.Load.Recycle {
		c.shared = c.w.Shared()
	}
	c.plan, err = schedule.New(c.w, s.cfg.Load)
	return err
}

// poll sends what is due, and comes back when more is.
func (c *clients) poll() {
	due, next := c.plan.Poll(c.s.now)
	for _, d := range due {
		c.send(d)
	}
	c.alarm++
	if next == schedule.Never {
		return
	}
	alarm := c.alarm
	c.s.after(max(next-c.s.now, 0), func() {
		if c.alarm == alarm {
			c.poll()
		}
	})
}

// send starts one request.
func (c *clients) send(d schedule.Send) {
	s, r := c.s, &c.w.Requests[d.Request]
	key := named(r.Conversation, d)
	j := &journey{s: s, f: s.fronts[d.Unit%len(s.fronts)], want: max(r.Output, 1), rank: -1}
	if s.cfg.Scatter {
		j.f = s.fronts[d.Seq%len(s.fronts)]
	}
	if !s.cfg.NoIDs {
		j.who = conversation.Resolved{ID: key}
		if s.cfg.Rules.Parents() { // else frontends do not read whose sub-agent it is
			j.who.Parent = named(r.Parent, d)
		}
	}
	if s.cfg.ForceRank {
		c.forced = (c.forced + 1) % s.cfg.Ctx.Ranks
		if j.rank = c.forced; s.cfg.relabel != nil {
			j.rank = s.cfg.relabel[j.rank]
		}
	}
	if s.now < s.cfg.Heat {
		j.rank = d.Unit / s.cfg.Ctx.Instances % s.cfg.Ctx.Ranks
	}
	j.prompt, j.before = c.prompt(key, r, d)
	j.seed = c.content(r.Reply, d.Play)
	if r.Reply == 0 {
		j.seed = workload.Mix(c.w.Seed^0x0a, uint64(d.Seq))
	}
	j.rec.ID, j.rec.Seq, j.rec.Sched, j.rec.Conversation, j.rec.Parent = r.ID, d.Seq, d.Sched, key, named(r.Parent, d)
	j.rec.Asked = r.Output
	c.sent++
	c.live++
	if j.rec.inside = s.measuring; j.rec.inside {
		c.awaited++
	}
	j.done = func() { c.ended(j, d) }
	j.rec.warm = r.Warm && d.Play == 0
	if r.Leave > 0 {
		s.after(r.Leave, j.cancel)
	}
	j.start()
}

// ended lets go on what waited for a request.
func (c *clients) ended(j *journey, d schedule.Send) {
	if j.rec.inside {
		c.awaited--
	}
	c.live--
	if conv := c.w.Requests[d.Request].Conversation; conv != "" && c.last[conv] == d.Request {
		delete(c.talks, named(conv, d))
	}
	c.plan.Done(d.Seq, c.s.now)
	c.poll()
}

// named is the id of a conversation in one play of the workload.
func named(conv string, d schedule.Send) string {
	if conv == "" || d.Play == 0 {
		return conv
	}
	return fmt.Sprintf("%s#%d", conv, d.Play)
}

// content is what a segment's tokens are made of.
func (c *clients) content(segment uint64, play int) uint64 {
	if play > 0 && !c.shared[segment] {
		segment = workload.Mix(segment, uint64(play))
	}
	return workload.Mix(c.w.Seed, segment)
}

// prompt makes the tokens of a request. They belong to it: what later turns
// append lies behind them.
func (c *clients) prompt(key string, r *workload.Request, d schedule.Send) (tokens []int32, before int) {
	t := c.talks[key]
	if key == "" || t == nil {
		t = &talk{}
	}
	if key != "" {
		c.talks[key] = t
	}
	at, kept, same := 0, 0, true
	for seg := range r.Segments {
		if same = same && at < len(t.segments) && t.segments[at] == seg; same {
			at, kept = at+1, kept+seg.Tokens
			continue
		}
		if at < len(t.segments) { // the histories part here
			t.segments = t.segments[:at:at]
			t.tokens = append(make([]int32, 0, r.Input), t.tokens[:kept]...)
		}
		t.tokens = appendTokens(t.tokens, c.content(seg.ID, d.Play), seg.Tokens)
		t.segments = append(t.segments, seg)
		at, kept = at+1, kept+seg.Tokens
	}
	t.segments, t.tokens = t.segments[:at], t.tokens[:kept]
	before, t.before = min(t.before, kept), kept
	return t.tokens[:kept:kept], before
}

func appendTokens(dst []int32, content uint64, n int) []int32 {
	for i := range n {
		dst = append(dst, token(content, i))
	}
	return dst
}

// token makes the i-th token of a text, a pure function of both.
func token(content uint64, i int) int32 { return int32(workload.Mix(content, uint64(i)) % Vocab) }
