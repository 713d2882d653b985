package adprouter

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"tandem/engine/request"
)

// itemForm is id:tokens and the marks that the head of each data file explains.
var itemForm = regexp.MustCompile(`^(\d+)(?::(\d+))?(?:#(\w+))?(?:@(-?\d+)([!~]))?(?:\*(\d+))?(?: f(\d+))?(?: m\[([\d,]*)\])?$`)

func parseItems(t testing.TB, text string) []Item {
	t.Helper()
	var out []Item
	if text = strings.TrimSpace(text); text == "" {
		return nil
	}
	for _, part := range strings.Split(text, ", ") {
		m := itemForm.FindStringSubmatch(part)
		if m == nil {
			t.Fatalf("%q is no request", part)
		}
		it := Item{ID: request.ID(number(t, m[1])), Tokens: number(t, m[2]), Key: m[3], Rank: -1, Weight: number(t, m[6])}
		if m[4] != "" {
			it.Rank, it.Relax = number(t, m[4]), m[5] == "~"
		}
		for range min(it.Tokens, HeadTokens) {
			it.Head = append(it.Head, int32(number(t, m[7])))
		}
		if m[8] != "" {
			for _, s := range strings.Split(m[8], ",") {
				it.Match = append(it.Match, int32(number(t, s)))
			}
		}
		out = append(out, it)
	}
	return out
}

func number(t testing.TB, s string) int {
	t.Helper()
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// states reads act=(..), tok=(..), queued=(..) and decoding=(..).
func parseStates(t testing.TB, d *datadriven.TestData) []RankState {
	t.Helper()
	var out []RankState
	for _, arg := range d.CmdArgs {
		for i, v := range arg.Vals {
			if i >= len(out) {
				out = append(out, RankState{})
			}
			switch n := number(t, v); arg.Key {
			case "act":
				out[i].Active = n
			case "tok":
				out[i].Tokens = int64(n)
			case "queued":
				out[i].QueuedPrefill = int64(n)
			case "decoding":
				out[i].Decoding = n
			}
		}
	}
	return out
}

func parseConfig(t testing.TB, d *datadriven.TestData) Config {
	t.Helper()
	c := Defaults(1, 1)
	c.Kind = Kind(d.CmdArgs[0].Key)
	for _, arg := range d.CmdArgs[1:] {
		f, _ := strconv.ParseFloat(arg.Vals[0], 64)
		milli, err := MilliOf(f)
		if err != nil {
			t.Fatal(err)
		}
		switch v := arg.Vals[0]; arg.Key {
		case "ranks":
			c.Ranks = number(t, v)
		case "cap":
			c.Cap = number(t, v)
		case "placement":
			c.Placement = Placement(v)
		case "sticky_cap":
			c.StickyCap = StickyCap(v)
		case "max_sessions":
			c.MaxSessions = number(t, v)
		case "fair_share_multiplier":
			c.Multiplier = milli
		case "load_balance_weight":
			c.LoadWeight = milli
		case "match_rate_threshold":
			c.MatchThreshold = milli
		case "cold_start_warmup":
			c.Warmup = v == "true"
		case "compat":
			c.Compat = v == "true"
		case "rehome":
			c.Rehome.On = v == "true"
		case "rehome_max_moves":
			c.Rehome.MaxMoves = number(t, v)
		case "rehome_gain":
			c.Rehome.Gain = milli
		case "rehome_min_gain":
			c.Rehome.MinGain = number(t, v)
		case "rehome_copy_cost":
			c.Rehome.CopyCost = milli
		case "rehome_cooldown":
			c.Rehome.Cooldown = number(t, v)
		default:
			t.Fatalf("unknown argument %s", arg.Key)
		}
	}
	return c
}

// list prints [1, 2, 3].
func list[T any](xs []T) string {
	parts := make([]string, len(xs))
	for i, x := range xs {
		parts[i] = fmt.Sprint(x)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func perRank(res *Result) [][]request.ID {
	out := make([][]request.ID, len(res.Active))
	for _, p := range res.Placed {
		out[p.Rank] = append(out[p.Rank], p.ID)
	}
	return out
}

func describe(r *Router, batch []Item, res *Result, reasons bool) string {
	var b strings.Builder
	ranks := []string{}
	for _, ids := range perRank(res) {
		ranks = append(ranks, list(ids))
	}
	fmt.Fprintf(&b, "%s T=%d", list(ranks), res.Target)
	if r.cfg.Kind == ConversationAware {
		b.WriteString("; bindings oldest first")
		for _, key := range r.Keys() {
			home, _ := r.Home(key)
			fmt.Fprintf(&b, " %s→%d", key, home)
		}
		if r.Len() == 0 {
			b.WriteString(" none")
		}
		for _, key := range r.Keys() {
			if to, ok := r.Moving(key); ok {
				fmt.Fprintf(&b, "; %s moves to %d", key, to)
			}
		}
		fmt.Fprintf(&b, "; cursor %d", r.Cursor())
	}
	if r.cfg.Warmup {
		fmt.Fprintf(&b, "; warm-up pending %s", list(r.Pending()))
	}
	if len(res.Unplaced) > 0 {
		b.WriteString("; unplaced")
		for _, i := range res.Unplaced {
			fmt.Fprintf(&b, " %d", batch[i].ID)
		}
	}
	if reasons {
		b.WriteString("\n")
		for i, p := range res.Placed {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%d %s", p.ID, p.Reason)
			if p.From >= 0 {
				fmt.Fprintf(&b, " from %d", p.From)
			}
		}
	}
	return b.String() + "\n"
}

// TestRouting runs the scenarios of routing; new starts a router, route is one
// call, move and move_failed tell how a change of home ended.
func TestRouting(t *testing.T) {
	for _, file := range []string{"default", "kv_cache_aware", "conversation_aware", "ours", "rehome"} {
		var r *Router
		datadriven.RunTest(t, "testdata/"+file+".txt", func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				var err error
				if r, err = New(parseConfig(t, d)); err != nil {
					t.Fatal(err)
				}
				return ""
			case "route":
				batch, states := parseItems(t, d.Input), parseStates(t, d)
				res := r.Route(states, batch)
				if err := r.checkResult(states, batch); err != nil {
					t.Error(err)
				}
				if err := r.Check(); err != nil {
					t.Error(err)
				}
				return describe(r, batch, res, d.HasArg("reasons"))
			case "move":
				return fmt.Sprintln(r.Move(d.CmdArgs[0].Key, number(t, d.CmdArgs[1].Key)))
			case "move_failed":
				return fmt.Sprintln(r.MoveFailed(d.CmdArgs[0].Key))
			case "moves":
				return fmt.Sprintf("%+v\n", r.Moves())
			case "idle": // calls with nothing to place
				for range number(t, d.CmdArgs[0].Key) {
					r.Route(make([]RankState, r.cfg.Ranks), nil)
				}
				return ""
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	}
}

// TestAdmission runs the scenarios of the waiting queue.
func TestAdmission(t *testing.T) {
	var q *Queue
	datadriven.RunTest(t, "testdata/admission.txt", func(t *testing.T, d *datadriven.TestData) string {
		var b strings.Builder
		waiting := func() string {
			ids := []request.ID{}
			for i := range q.Len() {
				ids = append(ids, q.At(i).ID)
			}
			return list(ids)
		}
		switch d.Cmd {
		case "queue":
			var ranks, limit int
			d.ScanArgs(t, "ranks", &ranks)
			d.ScanArgs(t, "cap", &limit)
			q = NewQueue(ranks, limit)
			fallthrough
		case "push":
			for _, it := range parseItems(t, d.Input) {
				if err := q.Push(it); err != nil {
					fmt.Fprintf(&b, "%d: %v\n", it.ID, err)
				}
			}
		case "probe":
			lists := make([][]Match, q.ranks)
			for rank, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
				for _, f := range strings.Fields(line) {
					id, tokens, _ := strings.Cut(f, ":")
					if id != "-" {
						lists[rank] = append(lists[rank], Match{request.ID(number(t, id)), int32(number(t, tokens))})
					}
				}
			}
			q.Probe(lists)
			for i := range q.Len() {
				fmt.Fprintf(&b, "%d %v\n", q.At(i).ID, q.At(i).Match)
			}
		case "remove":
			fmt.Fprintf(&b, "%v ", q.Remove(request.ID(number(t, d.CmdArgs[0].Key))))
		case "return":
			var at []int
			for _, a := range d.CmdArgs {
				at = append(at, number(t, a.Key))
			}
			q.Return(at)
		case "admit":
			states := parseStates(t, d)
			admitted := []request.ID{}
			for _, it := range q.Admit(states, d.HasArg("probed")) {
				admitted = append(admitted, it.ID)
			}
			fmt.Fprintf(&b, "room %d, admitted %s, ", Room(q.limit, states), list(admitted))
			if a := q.Aside(); a.Requests > 0 {
				fmt.Fprintf(&b, "%d aside, %d for %d calls, ", a.Requests, a.Oldest, a.Age)
			}
		default:
			t.Fatalf("unknown command %s", d.Cmd)
		}
		if err := q.check(); err != nil {
			t.Error(err)
		}
		return b.String() + "queue " + waiting() + "\n"
	})
}

// check compares the digest of the queue with its entries, and their order with
// the order of arrival.
func (q *Queue) check() error {
	sum, last := uint64(0), uint64(0)
	for i := q.head; i < len(q.entries); i++ {
		e := &q.entries[i]
		sum += e.digest()
		if e.seq <= last {
			return fmt.Errorf("request %d stands behind a later one", e.ID)
		}
		last = e.seq
	}
	if sum != q.sum {
		return fmt.Errorf("digest of the queue is %x, of its entries %x", q.sum, sum)
	}
	return nil
}

// rowForm is what one rank has: c and g scheduled, x active but without blocks,
// t in transfer, i waiting for the first pull, r retiring.
var rowForm = regexp.MustCompile(`([cgxtir])(\d+)`)

func parseRows(t testing.TB, text string) []Row {
	t.Helper()
	var rows []Row
	for _, cell := range regexp.MustCompile(`\[[^]]*\]`).FindAllString(text, -1) {
		r := Row{}
		for _, m := range rowForm.FindAllStringSubmatch(cell, -1) {
			n := number(t, m[2])
			switch m[1] {
			case "c":
				r.CtxRequests, r.Active, r.Intent = uint16(n), r.Active+uint32(n), Context
			case "g":
				r.GenRequests, r.Active, r.Intent = uint16(n), r.Active+uint32(n), max(r.Intent, Generation)
			case "r":
				r.Retiring = uint32(n)
			default:
				r.Active += uint32(n)
			}
		}
		rows = append(rows, r)
	}
	return rows
}

func describePlan(rows []Row, p *Plan) string {
	var pads []int
	sizes := []int{}
	for rank := range rows {
		n := int(rows[rank].GenRequests)
		if !p.Held {
			n += int(rows[rank].CtxRequests)
		}
		if p.Pad[rank] {
			pads = append(pads, rank)
			n = 1
		}
		sizes = append(sizes, n)
	}
	out := "intent " + p.Intent.String()
	if len(pads) > 0 {
		out += fmt.Sprintf("; ranks %s pad, %s", list(pads), p.PadKind)
	}
	if p.Held {
		out += "; prefill held"
	}
	if !p.Runs() {
		return out + "; no forward"
	}
	return out + "; sizes " + list(sizes)
}

// TestPadding runs the scenarios of padding and balance.
func TestPadding(t *testing.T) {
	var bal *Balance
	var plan Plan
	for _, file := range []string{"padding", "balance"} {
		datadriven.RunTest(t, "testdata/"+file+".txt", func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "pad":
				opt := PadOptions{Mixed: d.CmdArgs[0].Key == "mixed", Balance: bal}
				times := 1
				d.MaybeScanArgs(t, "times", &times)
				rows := parseRows(t, d.Input)
				out, before := "", fmt.Sprint(rows)
				for range times {
					Decide(rows, opt, &plan)
					if next := describePlan(rows, &plan); out != "" && next != out {
						t.Errorf("%s, before %s", next, out)
					} else {
						out = next
					}
				}
				if fmt.Sprint(rows) != before {
					t.Error("the plan changed the table")
				}
				if bal != nil {
					waiting, batching := bal.Counters()
					out += fmt.Sprintf("; waiting %d, batching %d", waiting, batching)
				}
				return out + "\n"
			case "idle":
				return fmt.Sprintln(Idle(parseRows(t, d.Input), 0))
			case "shape":
				tokens, drafts := PadShape(Context, number(t, d.CmdArgs[1].Key))
				if d.CmdArgs[0].Key == "generation" {
					tokens, drafts = PadShape(Generation, number(t, d.CmdArgs[1].Key))
				}
				return fmt.Sprintf("%d tokens, %d of them drafts\n", tokens, drafts)
			case "balance":
				bal = &Balance{TimeoutIters: math.MaxInt}
				for key, to := range map[string]*int{
					"timeout": &bal.TimeoutIters, "batching": &bal.BatchingWaitIters, "max_batch": &bal.MaxBatch,
					"short_below": &bal.ShortBelow, "short_timeout": &bal.ShortTimeoutIters,
				} {
					d.MaybeScanArgs(t, key, to)
				}
				return ""
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
		bal = nil
	}
}
