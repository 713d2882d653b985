package load

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"syscall"
	"time"

	"tandem/serve/h1"
	"tandem/serve/trace"
	"tandem/test/bench/result"
)

// API is the endpoint that requests go to.
type API string

// The endpoints.
const (
	Chat        API = "chat"        // /v1/chat/completions
	Completions API = "completions" // /v1/completions
)

// Client sends requests to one server. Set the fields before the first request.
type Client struct {
	URL   string // of the server, with or without /v1
	API   API
	Model string
	Key   string      // Authorization: Bearer
	Extra http.Header // on every request

	SessionHeader, ParentHeader, FinalHeader string // that carry ids of conversations; empty = none

	Timeout    time.Duration // of a whole request, 0 = none
	ForceClose bool          // a connection for each request

	// Count counts the tokens of an answer when the server does not tell; nil = it cannot.
	Count func(text string) int

	once sync.Once
	http *h1.Client
	url  string
}

// Outgoing is a request as it goes out.
type Outgoing struct {
	Body                 []byte
	Conversation, Parent string
	Final                bool
	KeepText             bool // the answer's text is wanted

	sent bool // there was a connection
}

func (c *Client) init() {
	c.http = &h1.Client{Connect: 30 * time.Second, MaxIdle: 1 << 16, IdleTime: 4 * time.Second}
	if c.ForceClose {
		c.http.MaxIdle = 0
	}
	path := "/v1/chat/completions"
	if c.API == Completions {
		path = "/v1/completions"
	}
	c.url = base(c.URL) + path
}

// base is the address without /v1.
func base(url string) string {
	return strings.TrimSuffix(strings.TrimRight(url, "/"), "/v1")
}

// errStatus says that the server refused.
type errStatus struct {
	code int
	text string
}

func (e *errStatus) Error() string {
	return fmt.Sprintf("status %d: %s", e.code, cmp.Or(e.text, http.StatusText(e.code)))
}

// Why requests are cancelled, as the records say it.
var (
	errCut         = errors.New("cut off: it went on when the run's time and grace were over")
	errInterrupted = errors.New("cut off: the run was interrupted")
	errLeft        = errors.New("the client left, as the workload says")
)

// errBroken says that a stream ended before the answer was complete.
var errBroken = errors.New("the stream ended before the answer was complete")

// Do sends one request and reads the answer to its end. It fills r's time points, by now, and what the server says; the
// outcome is in r. text is the answer if it is kept or must be counted.
func (c *Client) Do(ctx context.Context, out *Outgoing, now func() int64, r *result.Record, seen func()) (text string) {
	c.once.Do(c.init)
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	x := exchange{r: r, now: now, seen: seen, keep: out.KeepText || c.Count != nil}
	err := c.post(ctx, out, &x)
	r.End = now()
	out.sent = r.Send >= 0
	if err != nil && ctx.Err() != nil {
		err = c.ended(ctx) // the connection says only that it timed out
	}
	x.finish(err, c.Count)
	return x.text.String()
}

// ended says why a request's time was over.
func (c *Client) ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("no complete answer within %v: %w", c.Timeout, ctx.Err())
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return &cancelled{cause}
	}
	return ctx.Err()
}

// cancelled is a request that was ended on purpose.
type cancelled struct{ why error }

func (e *cancelled) Error() string { return e.why.Error() }

func (e *cancelled) Unwrap() error { return context.Canceled }

func (c *Client) post(ctx context.Context, out *Outgoing, x *exchange) error {
	kept := false
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { x.r.Send, kept = x.now(), i.Reused }})
	resp, err := c.http.Post(traced, c.url, c.header(out), out.Body)
	// llama-server says that it keeps connections, and closes them a moment after a stream.
	for kept && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		resp, err = c.http.Post(traced, c.url, c.header(out), out.Body)
	}
	if err != nil {
		return err //nolint:wrapcheck // it is shown as it is
	}
	defer resp.Close()
	x.r.Header, x.r.Status = x.now(), resp.StatusCode
	x.head(resp.Header)
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp, 64<<10)) // what can be read of it is shown
		text := errorText(body)
		if to := resp.Header.Get("Location"); to != "" && resp.StatusCode/100 == 3 {
			text = "redirected to " + short([]byte(to)) + ": name that server"
		}
		return &errStatus{resp.StatusCode, text}
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		return x.whole(resp)
	}
	for {
		piece, err := resp.Piece()
		if errors.Is(err, io.EOF) {
			return x.complete()
		}
		if err != nil {
			return err //nolint:wrapcheck // it is shown as it is
		}
		x.at = x.now()
		if err := x.lines.feed(piece, x.line); err != nil {
			return err
		}
	}
}

// maxAnswer bounds an answer in one piece.
const maxAnswer = 64 << 20

// whole reads an answer that is no stream.
func (x *exchange) whole(in io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(in, maxAnswer))
	if err != nil {
		return err //nolint:wrapcheck // it is shown as it is
	}
	x.at = x.now()
	if err := x.chunk.parse(data); err != nil {
		return err
	}
	if len(x.chunk.Error) > 0 && string(x.chunk.Error) != "null" {
		return fmt.Errorf("the answer is an error: %s", errorText(data))
	}
	x.r.Whole = true
	x.take(&x.chunk)
	return x.complete()
}

func (c *Client) header(out *Outgoing) http.Header {
	h := http.Header{"Content-Type": {"application/json"}, "Accept": {"text/event-stream"}, "User-Agent": {"tandem-bench"}}
	for name, values := range c.Extra {
		h[name] = values
	}
	if c.Key != "" {
		h["Authorization"] = []string{"Bearer " + c.Key}
	}
	put := func(name, value string) {
		if name != "" && value != "" {
			h[http.CanonicalHeaderKey(name)] = []string{value}
		}
	}
	put(c.SessionHeader, out.Conversation)
	put(c.ParentHeader, out.Parent)
	if out.Final {
		put(c.FinalHeader, "true")
	}
	return h
}

// exchange is one request under way.
type exchange struct {
	r     *result.Record
	now   func() int64
	seen  func()
	at    int64 // when the piece at hand arrived
	lines lines
	chunk chunk
	keep  bool
	text  strings.Builder
	done  bool // [DONE] came
	used  bool // usage came
}

// head takes what answers' headers say of the server.
func (x *exchange) head(h http.Header) {
	x.r.ServerID = h.Get("X-Request-Id")
	x.r.Route, x.r.Ctx, x.r.Gen = h.Get("X-Tandem-Route"), h.Get("X-Disagg-Ctx-Server"), h.Get("X-Disagg-Gen-Server")
	if t := h.Get(trace.HeaderTiming); t != "" {
		x.stages(t)
	}
}

func (x *exchange) stages(text string) {
	for _, s := range trace.ParseServerTiming(text) {
		if x.r.Stages == nil {
			x.r.Stages = map[string]float64{}
		}
		x.r.Stages[s.Name] = float64(s.Took.Microseconds()) / 1000
	}
}

// line handles one line of the stream.
func (x *exchange) line(line []byte) error {
	const timing = ": " + trace.HeaderTiming + ": "
	if len(line) > len(timing) && string(line[:len(timing)]) == timing {
		x.stages(string(line[len(timing):]))
		return nil
	}
	if len(line) < 5 || string(line[:5]) != "data:" {
		return nil
	}
	data := line[5:]
	if len(data) > 0 && data[0] == ' ' {
		data = data[1:]
	}
	if string(data) == "[DONE]" {
		x.done = true
		return nil
	}
	c := &x.chunk
	if err := c.parse(data); err != nil {
		return err
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return fmt.Errorf("the stream has an error: %s", errorText(data))
	}
	x.take(c)
	return nil
}

// take notes what a chunk brings.
func (x *exchange) take(c *chunk) {
	r := x.r
	if r.ServerID == "" {
		r.ServerID = c.ID
	}
	if u := c.Usage; u != nil && !u.odd() {
		x.used = true
		r.Input, r.Output = u.Prompt, u.Completion
		if u.Details != nil {
			r.Cached = u.Details.Cached
		}
	}
	for i := range c.Choices {
		ch := &c.Choices[i]
		if ch.Finish != "" {
			r.Finish = ch.Finish
		}
		if ch.PerIter > 0 {
			r.PerIter = ch.PerIter
		}
		if x.keep {
			for _, d := range []*message{&ch.Delta, &ch.Message} {
				x.text.WriteString(d.Reasoning)
				x.text.WriteString(d.Thinking)
				x.text.WriteString(d.Content)
			}
			x.text.WriteString(ch.Text)
		}
	}
	any, answer := c.content()
	if answer && r.FirstAnswer < 0 {
		r.FirstAnswer = x.at
	}
	if !any {
		return
	}
	if r.First < 0 {
		r.First = x.at
	} else {
		r.Gaps = append(r.Gaps, x.at-r.Last)
	}
	r.Last = x.at
	if x.seen != nil {
		x.seen()
	}
}

// complete tells whether the stream may end here. Some servers send no [DONE].
func (x *exchange) complete() error {
	if x.done || x.r.Finish != "" {
		return nil
	}
	return errBroken
}

// finish sets outcome and counts.
func (x *exchange) finish(err error, count func(string) int) {
	r := x.r
	var status *errStatus
	switch {
	case err == nil:
		r.Outcome = result.OK
	case errors.As(err, &status) && (status.code == http.StatusTooManyRequests || status.code == http.StatusServiceUnavailable):
		r.Outcome = result.Shed
	case errors.Is(err, context.DeadlineExceeded):
		r.Outcome = result.Timeout
	case errors.Is(err, context.Canceled):
		r.Outcome = result.Cancelled
	default:
		r.Outcome = result.Failed
	}
	if err != nil {
		r.Error = err.Error()
	}
	if r.Send < 0 && err != nil {
		r.Send = r.Sched // it was never sent: all its time was spent to connect
	}
	switch {
	case x.used:
		r.Counted = "usage"
	case count != nil:
		r.Output, r.Counted = count(x.text.String()), "tokenizer"
		r.Input = r.AskedInput
	case r.Finish == "length":
		r.Input, r.Output, r.Counted = r.AskedInput, r.AskedOutput, "asked"
	default:
		r.Input, r.Counted = r.AskedInput, "none"
	}
}

// Models asks the server which models it has.
func (c *Client) Models(ctx context.Context) ([]string, error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	data, err := c.Get(ctx, "/v1/models")
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("models of %s: %w", c.URL, err)
	}
	var out []string
	for _, m := range list.Data {
		if m.ID != "" {
			out = append(out, m.ID)
		}
	}
	return out, nil
}

// Get reads a page of the server.
func (c *Client) Get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base(c.URL)+path, nil)
	if err != nil {
		return nil, fmt.Errorf("url %q: %w", c.URL, err)
	}
	req.Header = c.header(&Outgoing{})
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the URL
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %w", path, &errStatus{resp.StatusCode, errorText(data)})
	}
	return data, nil
}
