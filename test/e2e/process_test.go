//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Deadlines are generous, since other work may share the machine.
const (
	startLimit  = 90 * time.Second
	stopLimit   = 45 * time.Second
	answerLimit = 3 * time.Minute
	settleLimit = 30 * time.Second
)

// process is one binary under test, in a process group of its own.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   logBuffer
	url   string // http://host:port, from the ready line
	admin string
	done  chan struct{} // closed when it has ended
	err   error         // of Wait, valid after done
	once  sync.Once     // of stop
}

// logsEnv names a folder that gets whole logs, a file for each process.
const logsEnv = "TANDEM_E2E_LOGS"

// logBuffer keeps the end of what a process printed.
type logBuffer struct {
	file *os.File // nil = not all is kept
	mu   sync.Mutex
	text []byte
}

const keepLog = 32 << 10

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_, _ = l.file.Write(p)
	}
	l.text = append(l.text, p...)
	if len(l.text) > 2*keepLog {
		l.text = bytes.Clone(l.text[len(l.text)-keepLog:])
	}
	return len(p), nil
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text[max(0, len(l.text)-keepLog):])
}

// start runs a binary and waits for its ready line. It is stopped, and checked
// for children left behind, when the test ends.
func start(t *testing.T, name, bin string, args ...string) *process {
	t.Helper()
	p, ready := launch(t, name, bin, args...)
	select {
	case line, ok := <-ready:
		if !ok {
			<-p.done
			t.Fatalf("%s ended before it was ready: %v\n%s", name, p.err, p.log.String())
		}
		p.readReady(line)
		if !strings.HasPrefix(p.url, "http") {
			t.Fatalf("%s: the ready line has no url: %q", name, line)
		}
	case <-time.After(startLimit):
		t.Fatalf("%s is not ready after %v\n%s", name, startLimit, p.log.String())
	}
	return p
}

// readyMarks begin the ready lines: of serve for programs, of up for people.
var readyMarks = []string{"TANDEM_READY ", "Tandem is ready at "}

func isReady(line string) bool {
	return slices.ContainsFunc(readyMarks, func(m string) bool { return strings.HasPrefix(line, m) })
}

func (p *process) readReady(line string) {
	if rest, ok := strings.CutPrefix(line, readyMarks[1]); ok {
		p.url, _, _ = strings.Cut(rest, " ")
		return
	}
	for _, field := range strings.Fields(line) {
		if v, ok := strings.CutPrefix(field, "url="); ok {
			p.url = strings.TrimSuffix(v, "/")
		}
		if v, ok := strings.CutPrefix(field, "admin="); ok {
			p.admin = v
		}
	}
}

// launch starts a binary; ready gets its ready line, or is closed without one.
func launch(t *testing.T, name, bin string, args ...string) (p *process, ready chan string) {
	t.Helper()
	p = &process{name: name, cmd: exec.Command(bin, args...), done: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if dir := os.Getenv(logsEnv); dir != "" {
		f, err := os.Create(filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".log"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		p.log.file = f
	}
	p.cmd.Stderr = &p.log
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready = make(chan string, 1)
	go func() {
		defer close(p.done)
		p.follow(stdout, ready)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() { p.stop(t) })
	return p, ready
}

// follow reads stdout to its end and hands over the ready line.
func (p *process) follow(stdout io.Reader, ready chan<- string) {
	defer close(ready)
	told := false
	in := bufio.NewScanner(stdout)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		p.log.Write(append(in.Bytes(), '\n'))
		if line := in.Text(); isReady(line) && !told {
			told = true
			ready <- line
		}
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// signal sends sig to the process alone, not to its group.
func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("%s: signal %v: %v", p.name, sig, err)
	}
}

// wait returns the exit code; -1 if a signal ended it.
func (p *process) wait(t *testing.T, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		t.Fatalf("%s still runs %v after it was told to end\n%s", p.name, limit, p.log.String())
		return -1
	}
}

// stop ends the process if it still runs and checks that nothing is left.
func (p *process) stop(t *testing.T) { p.once.Do(func() { p.end(t) }) }

func (p *process) end(t *testing.T) {
	family := descendants(p.pid())
	select {
	case <-p.done:
	default:
		_ = p.cmd.Process.Signal(syscall.SIGINT)
		select {
		case <-p.done:
		case <-time.After(stopLimit):
			t.Errorf("%s does not end on SIGINT", p.name)
		}
	}
	for _, pid := range family {
		if !gone(pid, settleLimit) {
			t.Errorf("%s left its child %d (%s) behind", p.name, pid, cmdline(pid))
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL)
	<-p.done
	if t.Failed() {
		t.Logf("--- the end of the log of %s ---\n%s", p.name, p.log.String())
	}
}

// gone waits until a process has ended (a zombie counts as ended).
func gone(pid int, limit time.Duration) bool {
	return eventually(limit, func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			return true
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(rest, "Z")
	})
}

// descendants lists the processes below pid.
func descendants(pid int) (out []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if parent, _ := strconv.Atoi(fields[1]); parent == pid {
			out = append(append(out, child), descendants(child)...)
		}
	}
	return out
}

// cmdline is what a process was started with.
func cmdline(pid int) string {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return strings.TrimSpace(strings.ReplaceAll(string(text), "\x00", " "))
}

// eventually polls until ok or the limit has passed.
func eventually(limit time.Duration, ok func() bool) bool {
	end := time.Now().Add(limit)
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(wait)
	}
}

// writeFile puts text into a file of the test's folder and returns its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
