package trace

import (
	"compress/gzip"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"tandem/engine/blockhash"
)

// CaptureOptions say where the record of requests goes and how large it gets.
type CaptureOptions struct {
	Dir      string // folder, made if needed
	MaxBytes int64  // of one file, compressed, about
	MaxFiles int    // of this run; the oldest is deleted
	Source   string // for the header
	Routes   bool   // decisions of routers, too
	Log      *slog.Logger
}

// Captured is a request in the native record of traces for replay. It has no
// text and no token ids.
type Captured struct {
	RequestID    string    `json:"request_id"`
	TimestampMs  float64   `json:"timestamp_ms"` // arrival, since the start of the trace
	Conversation string    `json:"conversation_id,omitempty"`
	Parent       string    `json:"parent_conversation_id,omitempty"`
	Input        int       `json:"input_length"`
	Output       int       `json:"output_length"`
	BlockSize    int       `json:"block_size,omitempty"`
	HashIDs      []int64   `json:"hash_ids,omitempty"` // of the full blocks
	Model        string    `json:"model,omitempty"`
	Priority     float64   `json:"priority,omitempty"`
	Observed     *Observed `json:"observed"`
}

// Observed is how a captured request went.
type Observed struct {
	TTFTMs    float64 `json:"ttft_ms,omitempty"`
	E2EMs     float64 `json:"e2el_ms"`
	Cached    int     `json:"cached"`
	Path      string  `json:"path,omitempty"`
	CtxServer string  `json:"ctx_server,omitempty"`
	GenServer string  `json:"gen_server,omitempty"`
	Outcome   string  `json:"outcome"`
}

// captureHeader is the first line of each file.
type captureHeader struct {
	Kind    string `json:"kind"`
	Version int    `json:"version"`
	Source  string `json:"source"`
	Started string `json:"started"`
}

// captureQueue is how many requests may wait to be written; more are dropped.
const captureQueue = 4096

// Capture writes requests as gzipped JSON lines, to files of bounded size and
// number. Hashes and conversation ids are salted with a secret of this run that
// is never stored, so they can be compared within the trace and with nothing
// else. A nil Capture writes nothing. Close it at the end.
type Capture struct {
	o       CaptureOptions
	start   time.Time
	root    string   // the salt
	queue   chan any // values of lines
	dropped atomic.Uint64
	done    chan struct{}
	once    sync.Once

	n    int // files begun
	file *os.File
	zip  *gzip.Writer
	size *counted
}

// counted counts bytes on their way to a file.
type counted struct {
	w io.Writer
	n int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err //nolint:wrapcheck // it hands on what it wraps
}

// NewCapture begins a trace at start. It is nil if o names no folder.
func NewCapture(o CaptureOptions, start time.Time) (*Capture, error) {
	if o.Dir == "" {
		return nil, nil //nolint:nilnil // a nil Capture is one that is off
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("trace capture: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	salt := make([]byte, 32)
	if _, err := rand.Read(salt); err != nil {
		return nil, fmt.Errorf("trace capture: %w", err)
	}
	c := &Capture{o: o, start: start, root: hex.EncodeToString(salt), queue: make(chan any, captureQueue), done: make(chan struct{})}
	if err := c.open(); err != nil {
		return nil, err
	}
	go c.run()
	return c, nil
}

// On tells whether requests are captured.
func (c *Capture) On() bool { return c != nil }

// Add notes a request that arrived at at. It never waits: when the disk is too
// slow the request is dropped and counted.
func (c *Capture) Add(r Captured, at time.Time) {
	r.TimestampMs = c.millis(at)
	c.put(r)
}

func (c *Capture) millis(at time.Time) float64 { return float64(at.Sub(c.start).Microseconds()) / 1000 }

func (c *Capture) put(v any) {
	select {
	case c.queue <- v:
	default:
		c.dropped.Add(1)
	}
}

// Name returns what stands for a conversation id in the trace.
func (c *Capture) Name(id string) string {
	if id == "" {
		return ""
	}
	h := blockhash.Root(c.root, "conversation", id)
	return hex.EncodeToString(h[:8])
}

// Hashes returns the ids of the full blocks of a prompt. Equal ids mean equal
// prefixes up to that block, under the same cache salt.
func (c *Capture) Hashes(prompt []int32, block int, salt string) []int64 {
	if block <= 0 || len(prompt) < block {
		return nil
	}
	out := make([]int64, 0, len(prompt)/block)
	h := blockhash.Root(c.root, "", salt)
	for i := 0; i+block <= len(prompt); i += block {
		h = blockhash.Next(h, prompt[i:i+block])
		out = append(out, int64(h.Wire()>>11)) // 53 bits: exact in every JSON reader
	}
	return out
}

// Close writes what waits and ends the last file. Nothing may be added any more.
func (c *Capture) Close() error {
	if c == nil {
		return nil
	}
	var err error
	c.once.Do(func() {
		close(c.queue)
		<-c.done
		if n := c.dropped.Load(); n > 0 {
			c.o.Log.Warn("the trace capture lacks requests, since the disk was too slow", "dropped", n)
		}
		err = c.finish()
	})
	return err
}

func (c *Capture) run() {
	defer close(c.done)
	failed := false
	for r := range c.queue {
		if err := c.write(r); err != nil && !failed {
			failed = true
			c.o.Log.Error("the trace capture cannot be written", "error", err)
		}
	}
}

func (c *Capture) write(v any) error {
	if c.zip == nil {
		c.dropped.Add(1)
		return nil // an earlier error closed the file
	}
	if err := c.line(v); err != nil {
		return err
	}
	if c.size.n < c.o.MaxBytes {
		return nil
	}
	if err := c.finish(); err != nil {
		return err
	}
	return c.open()
}

// line writes one value. What it wrote is compressed at once, so that the size
// of the file is known and little is lost when the process dies.
func (c *Capture) line(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("trace capture: %w", err)
	}
	if _, err := c.zip.Write(append(data, '\n')); err != nil {
		return fmt.Errorf("trace capture: %w", err)
	}
	if err := c.zip.Flush(); err != nil {
		return fmt.Errorf("trace capture: %w", err)
	}
	return nil
}

func (c *Capture) path(n int) string {
	return filepath.Join(c.o.Dir, fmt.Sprintf("trace-%s-%04d.jsonl.gz", c.start.UTC().Format("20060102T150405"), n))
}

// open begins the next file and deletes the one that is too many.
func (c *Capture) open() error {
	c.n++
	f, err := os.OpenFile(c.path(c.n), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("trace capture: %w", err)
	}
	c.file, c.size = f, &counted{w: f}
	c.zip = gzip.NewWriter(c.size)
	if old := c.n - c.o.MaxFiles; old > 0 {
		_ = os.Remove(c.path(old)) // somebody else may have taken it away
	}
	return c.line(captureHeader{"trace-header", 1, c.o.Source, c.start.UTC().Format(time.RFC3339)})
}

func (c *Capture) finish() error {
	if c.zip == nil {
		return nil
	}
	err := c.zip.Close()
	if e := c.file.Close(); err == nil {
		err = e
	}
	c.zip, c.file = nil, nil
	if err != nil {
		return fmt.Errorf("trace capture: %w", err)
	}
	return nil
}
