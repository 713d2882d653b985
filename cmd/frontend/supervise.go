package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// readyPrefix starts the one line a worker prints on stdout when it serves.
const readyPrefix = "TANDEM_READY "

// child says how to start one worker.
type child struct {
	name string                  // prefix of its log lines: ctx0, gen1
	args func(port int) []string // port 0 = any free one
}

// supervisor keeps child processes running. A child that crashes after it was ready once is started again on the same
// port, so that its address stays valid; one that never gets ready ends the whole start.
type supervisor struct {
	bin      string
	children []child
	env      []string // added to the environment
	out      io.Writer
	log      *slog.Logger
	grace    time.Duration   // from SIGTERM to SIGKILL
	hurry    context.Context // ends the grace early
	minPause time.Duration   // before the first restart; doubles
	maxPause time.Duration
	healthy  time.Duration // ready for this long: the pause starts over

	mu sync.Mutex // guards out
	wg sync.WaitGroup
}

func newSupervisor(bin string, children []child, out io.Writer, log *slog.Logger) *supervisor {
	return &supervisor{
		bin: bin, children: children, out: out, log: log, grace: 10 * time.Second, hurry: context.Background(),
		minPause: 500 * time.Millisecond, maxPause: 10 * time.Second, healthy: 30 * time.Second,
	}
}

// start starts all children and waits until each is ready. It returns their URLs in order. On an error, or when ctx
// ends, wait must still be called.
func (s *supervisor) start(ctx context.Context) ([]string, error) {
	type first struct {
		i   int
		url string
		err error
	}
	results := make(chan first, len(s.children))
	for i, c := range s.children {
		s.wg.Go(func() {
			s.keep(ctx, c, func(url string, err error) { results <- first{i, url, err} })
		})
	}
	urls := make([]string, len(s.children))
	for range s.children {
		select {
		case r := <-results:
			if r.err != nil {
				return nil, r.err
			}
			urls[r.i] = r.url
		case <-ctx.Done():
			return nil, ctx.Err() // the caller's own context
		}
	}
	return urls, nil
}

// wait returns when all children ended, which they do once start's context did.
func (s *supervisor) wait() { s.wg.Wait() }

// keep runs one child until ctx ends. first is told once how the first start went.
func (s *supervisor) keep(ctx context.Context, c child, first func(string, error)) {
	// Pdeathsig follows the thread that forked, so this one must live as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	run := childRun{pause: s.minPause, first: first}
	for ctx.Err() == nil {
		how := s.once(ctx, c, &run)
		if ctx.Err() != nil || run.first != nil {
			return
		}
		s.log.Warn("worker ended, restarting", "worker", c.name, "status", how, "in", run.pause)
		if !sleep(ctx, run.pause) {
			return
		}
		run.pause = min(2*run.pause, s.maxPause)
	}
}

// childRun is what the runs of one child share.
type childRun struct {
	port  int                 // 0 until it was ready once
	pause time.Duration       // before the next restart
	first func(string, error) // nil once the child was ready
}

// once runs a child until it or ctx ends and says how it ended. When it ends before the child was ever ready, first was
// told why and stays set.
func (s *supervisor) once(ctx context.Context, c child, run *childRun) (how string) {
	p, err := s.spawn(c, run.port)
	if err != nil {
		if run.first != nil {
			run.first("", err)
		}
		return err.Error()
	}
	var addr string
	select {
	case addr = <-p.ready:
	case <-p.done:
		if run.first != nil {
			run.first("", p.reason())
		}
		return p.status()
	case <-ctx.Done():
		s.end(p)
		return p.status()
	}
	began := time.Now()
	port, err := portOf(addr)
	switch {
	case run.first == nil:
		s.log.Info("worker is back", "worker", c.name, "url", addr)
	case err != nil:
		run.first("", fmt.Errorf("%s: %w", c.name, err))
		s.end(p)
		return p.status()
	default:
		run.port = port
		run.first(addr, nil)
		run.first = nil
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		s.end(p)
	}
	if time.Since(began) >= s.healthy {
		run.pause = s.minPause
	}
	return p.status()
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// process is one run of a child.
type process struct {
	name  string
	cmd   *exec.Cmd
	ready chan string   // gets the URL at most once
	done  chan struct{} // closed after the process ended and its output was read
	tail  *lines        // stderr
	err   error         // of Wait; valid after done
}

func (s *supervisor) spawn(c child, port int) (*process, error) {
	p := &process{name: c.name, ready: make(chan string, 1), done: make(chan struct{})}
	p.cmd = exec.Command(s.bin, c.args(port)...)
	p.cmd.Env = append(os.Environ(), s.env...)
	p.cmd.SysProcAttr = childAttr()
	p.cmd.WaitDelay = 2 * time.Second // a grandchild that kept the pipe must not hold us
	p.tail = &lines{keep: 6, emit: func(line string) { s.print(c.name, line) }}
	p.cmd.Stderr = p.tail
	stdout := &lines{emit: func(line string) {
		rest, ok := strings.CutPrefix(line, readyPrefix)
		if !ok {
			s.print(c.name, line)
			return
		}
		for _, field := range strings.Fields(rest) {
			if addr, ok := strings.CutPrefix(field, "url="); ok {
				select {
				case p.ready <- addr:
				default:
				}
			}
		}
	}}
	p.cmd.Stdout = stdout
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: cannot start the worker: %w", c.name, err)
	}
	s.wg.Go(func() {
		p.err = p.cmd.Wait()
		stdout.flush()
		p.tail.flush()
		close(p.done)
	})
	return p, nil
}

// print writes one log line of a child.
func (s *supervisor) print(name, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintf(s.out, "[%s] %s\n", name, line)
}

// end asks a process to stop and, after the grace, makes it.
func (s *supervisor) end(p *process) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	t := time.NewTimer(s.grace)
	defer t.Stop()
	select {
	case <-p.done:
		return
	case <-t.C:
		s.log.Warn("worker does not stop, killing it", "worker", p.name)
	case <-s.hurry.Done():
		s.log.Info("interrupted again, killing worker", "worker", p.name)
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// status says how the process ended.
func (p *process) status() string {
	if p.err == nil {
		return "exit status 0"
	}
	return p.err.Error()
}

// reason is the error of a process that ended before it was ready: its last words.
func (p *process) reason() error {
	words := p.tail.last()
	if len(words) == 0 {
		return fmt.Errorf("%s ended before it was ready (%s) and said nothing", p.name, p.status())
	}
	return fmt.Errorf("%s ended before it was ready (%s): %s", p.name, p.status(), strings.Join(words, "\n  "))
}

func portOf(addr string) (int, error) {
	u, err := url.Parse(addr)
	if err != nil {
		return 0, fmt.Errorf("unusable address %q in its ready line", addr)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil || port < 1 {
		return 0, errors.New("no port in its ready line: " + strconv.Quote(addr))
	}
	return port, nil
}

// maxLine bounds one line of a child's output, in bytes.
const maxLine = 16 << 10

// lines is a writer that splits into lines and remembers the last ones.
type lines struct {
	emit func(string)
	keep int

	mu   sync.Mutex
	part []byte
	kept []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range p {
		if b == '\n' || len(l.part) >= maxLine {
			l.cut()
		}
		if b != '\n' {
			l.part = append(l.part, b)
		}
	}
	return len(p), nil
}

// cut ends the current line. The lock is held.
func (l *lines) cut() {
	line := strings.TrimRight(string(l.part), "\r")
	l.part = l.part[:0]
	if line == "" {
		return
	}
	if l.keep > 0 {
		l.kept = append(l.kept, line)
		l.kept = l.kept[max(0, len(l.kept)-l.keep):]
	}
	l.emit(line)
}

func (l *lines) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut()
}

func (l *lines) last() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.kept...)
}
