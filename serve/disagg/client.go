package disagg

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"tandem/serve/openai"
)

// Headers that only the frontend sends.
const (
	headerCtxServer = "X-Disagg-Ctx-Server"
	headerGenServer = "X-Disagg-Gen-Server"
	headerPath      = "X-Disagg-Path"
)

// errClientGone says that a write to the client failed: nobody reads the answer any more.
var errClientGone = errors.New("the client does not read")

// client is the answer side of one request. Not safe for concurrent use.
type client struct {
	w        http.ResponseWriter
	events   *openai.EventWriter
	patience time.Duration // for the client to take a piece of its answer
	expose   bool
	status   int           // what was sent, 0 = nothing yet
	usage    *openai.Usage // what the client was told
	relayed  bool          // an event of a gen worker went out, so no other attempt may follow
	early    bool          // the first delta went out
	roles    roles
	id       int64    // disagg_request_id of the answer that went out
	have     progress // of a stream
	ending   func()   // is called before an answer is complete, nil = nothing
}

func (s *Server) newClient(w http.ResponseWriter, p *RoutePlan) *client {
	c := &client{roles: roles{}, w: w, events: openai.NewEventWriter(w, s.cfg.ClientWrite), patience: s.cfg.ClientWrite, expose: s.cfg.ExposeRouting}
	w.Header().Set(openai.HeaderRequestID, p.RequestID)
	return c
}

// route sets the routing headers; they count when the first byte goes out. Unused legs are "-". When a leg is repeated after
// an early first token the headers are out: then a comment tells the receipts.
func (c *client) route(id int64, path Path, ctx, gen, receipts string) {
	h := c.w.Header()
	h.Set(openai.HeaderDisaggRequestID, strconv.FormatInt(id, 10))
	if !c.expose {
		return
	}
	h.Set(headerCtxServer, orDash(ctx))
	h.Set(headerGenServer, orDash(gen))
	h.Set(headerPath, string(path))
	if receipts == "" {
		h.Del(openai.HeaderRoute) // of an attempt that failed
		return
	}
	h.Set(openai.HeaderRoute, receipts)
	if c.started() {
		_ = c.events.Comment(openai.HeaderRoute + ": " + receipts) // a client that left shows at the next event
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// joinReceipts joins the workers' route receipts.
func joinReceipts(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}

// started tells whether status and headers are out.
func (c *client) started() bool { return c.status != 0 }

// data sends one event's JSON.
func (c *client) data(payload []byte) error {
	c.status = http.StatusOK
	if err := c.events.Data(payload); err != nil {
		return errors.Join(errClientGone, err)
	}
	return nil
}

// raw sends whole events as they are.
func (c *client) raw(events []byte) error {
	c.status = http.StatusOK
	if err := c.events.Raw(events); err != nil {
		return errors.Join(errClientGone, err)
	}
	return nil
}

// hold sends whole events at the next flush, or with the next that is not held.
func (c *client) hold(events []byte) error {
	c.status = http.StatusOK
	if err := c.events.Hold(events); err != nil {
		return errors.Join(errClientGone, err)
	}
	return nil
}

// holdData sends one event's JSON at the next flush, or with the next event that is not held.
func (c *client) holdData(payload []byte) error {
	c.status = http.StatusOK
	if err := c.events.HoldData(payload); err != nil {
		return errors.Join(errClientGone, err)
	}
	return nil
}

// done ends a stream that succeeded.
func (c *client) done() error {
	c.ends()
	if err := c.events.Done(); err != nil {
		return errors.Join(errClientGone, err)
	}
	return nil
}

// whole sends a complete JSON answer.
func (c *client) whole(body []byte) error {
	c.ends()
	c.status = http.StatusOK
	c.w.Header().Set("Content-Type", "application/json")
	if err := openai.WriteBody(c.w, http.StatusOK, body, c.patience); err != nil {
		return errors.Join(errClientGone, err)
	}
	return nil
}

// ends waits for what must be before the client may go on.
func (c *client) ends() {
	if c.ending != nil {
		c.ending()
	}
}

// cut ends what is being written to the client. It may be called while the request runs, and after it.
func (c *client) cut() { _ = http.NewResponseController(c.w).SetWriteDeadline(time.Unix(1, 0)) }

// fail tells the client of an error. It returns true when the stream had begun: then the error is an event and the
// connection must be cut so that nobody takes the answer for complete.
func (c *client) fail(e *openai.Error) (cut bool) {
	if !c.started() {
		c.status = e.Status
		openai.WriteError(c.w, e)
		return false
	}
	// The connection is cut whether or not the event arrives.
	_ = c.events.Error(e)
	return true
}
