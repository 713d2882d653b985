package disagg

import (
	"crypto/rand"
	"encoding/json"
	"io"
	"sync"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// The events of the life of a request, in the lines that DISAGG_DIAGNOSTICS asks for.
const (
	diagDispatch   = "dispatch" // after ctx_ or gen_
	diagComplete   = "complete"
	diagError      = "error"
	diagRejected   = "gen_rejected"
	diagDisconnect = "client_disconnect"
	diagAbort      = "abort"
)

// maxDiagError bounds the text of an error in a line, in bytes.
const maxDiagError = 256

// diagnosis is one line. Lines of one clock_id are in the order of wall_ns and seq.
type diagnosis struct {
	V         int     `json:"v"`
	ClockID   string  `json:"clock_id"` // of the process
	Seq       uint64  `json:"seq"`
	WallNS    int64   `json:"wall_ns"`
	Node      int     `json:"node"`
	Event     string  `json:"event"`
	RID       string  `json:"rid"` // the disagg_request_id, as text
	RequestID string  `json:"request_id,omitempty"`
	Ctx       string  `json:"ctx"`
	Gen       string  `json:"gen"`
	Sched     string  `json:"sched"`      // "" of an abort, which may be of any attempt
	ElapsedMs float64 `json:"elapsed_ms"` // of the leg; of a disconnect since the arrival
	Status    int     `json:"http_status,omitempty"`
	Error     string  `json:"error,omitempty"`
}

// diagnostics writes lines. A nil one writes nothing.
type diagnostics struct {
	clock string
	style string // of all requests but those of several choices
	node  int
	now   func() time.Time

	mu  sync.Mutex
	out io.Writer
	seq uint64
}

func newDiagnostics(out io.Writer, node int, now func() time.Time) *diagnostics {
	if out == nil {
		return nil
	}
	return &diagnostics{clock: rand.Text(), style: openai.ContextFirst, node: node, now: now, out: out}
}

// note completes a line and writes it. What cannot be written is lost.
func (d *diagnostics) note(line diagnosis, since time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	d.seq++
	line.V, line.ClockID, line.Seq, line.WallNS, line.Node = 1, d.clock, d.seq, now.UnixNano(), d.node
	if !since.IsZero() {
		line.ElapsedMs = float64(now.Sub(since).Microseconds()) / 1000
	}
	text, err := json.Marshal(line)
	if err != nil {
		return // never: these are texts and numbers
	}
	_, _ = d.out.Write(append(text, '\n'))
}

// leg notes the beginning (e nil and event dispatch) or the end of an attempt.
func (d *diagnostics) leg(event string, l *leg, e *legError) {
	if d == nil {
		return
	}
	prefix, line := "ctx_", diagnosis{RID: decimalID(l.id), RequestID: l.plan.RequestID, Ctx: l.inst.ID, Sched: l.plan.style()}
	if l.role == discovery.Generation {
		prefix, line.Ctx, line.Gen = "gen_", l.plan.trip.ctx.ID, l.inst.ID
	}
	if line.Event = prefix + event; e != nil {
		line.Status, line.Error = e.err.Status, openai.Cut(e.Error(), maxDiagError)
		if l.role == discovery.Generation && e.fault == faultStatus {
			line.Event = diagRejected
		}
	}
	d.note(line, l.started)
}

// request notes what concerns a whole request.
func (d *diagnostics) request(event string, p *RoutePlan, status int) {
	if d == nil {
		return
	}
	d.note(diagnosis{
		Event: event, RID: decimalID(p.trip.id), RequestID: p.RequestID, Ctx: p.trip.ctx.ID, Gen: p.trip.gen.ID,
		Sched: p.style(), Status: status,
	}, p.Arrived)
}

// aborted notes a message that ends an attempt.
func (d *diagnostics) aborted(role discovery.Role, inst discovery.Instance, id int64, reason string) {
	if d == nil {
		return
	}
	line := diagnosis{Event: diagAbort, RID: decimalID(id), Sched: d.style, Error: reason}
	if line.Ctx = inst.ID; role == discovery.Generation {
		line.Gen, line.Ctx = inst.ID, ""
	}
	d.note(line, time.Time{})
}
