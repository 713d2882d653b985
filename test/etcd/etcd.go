// Package etcd starts a real etcd server for tests.
package etcd

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// buildLimit bounds the build of the server, the first of which compiles all of etcd.
const buildLimit = 9 * time.Minute

// folder holds the program, once it is built.
var folder string

// built is the server's program, made once for all tests of a process.
var built = sync.OnceValues(func() (path string, why string) {
	_, here, _, _ := runtime.Caller(0)
	dir, err := os.MkdirTemp("", "tandem-etcd-")
	if err != nil {
		return "", err.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildLimit)
	defer cancel()
	path = filepath.Join(dir, "server")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, ".")
	cmd.Dir = filepath.Join(filepath.Dir(here), "server")
	if out, err := cmd.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		return "", err.Error() + ": " + string(bytes.TrimSpace(out))
	}
	folder = dir
	return path, ""
})

// Remove deletes the program, if it was built; call it at the end of TestMain.
func Remove() {
	if folder != "" {
		_ = os.RemoveAll(folder)
	}
}

// Server is a running etcd server with one member.
type Server struct {
	Addr  string // host:port for clients
	dir   string
	files []string // of TLS
	cmd   *exec.Cmd
	in    io.Closer
	log   *bytes.Buffer
}

// Start runs a server with an empty store until the test ends. It skips the test where the server cannot be built, because
// its modules are not there.
func Start(t *testing.T) *Server {
	t.Helper()
	return start(t)
}

// StartTLS runs one whose clients come by TLS and show a certificate of ca; the arguments are PEM files.
func StartTLS(t *testing.T, cert, key, ca string) *Server {
	t.Helper()
	return start(t, cert, key, ca)
}

func start(t *testing.T, files ...string) *Server {
	t.Helper()
	path, why := built()
	if path == "" {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the etcd server cannot be built: %s", why)
		}
		t.Skipf("the etcd server cannot be built: %s", why)
	}
	s := &Server{dir: t.TempDir(), files: files}
	s.start(t, path, "0")
	t.Cleanup(func() { s.Stop(t) })
	return s
}

// Restart starts a stopped server again, on the same port and with what it had stored.
func (s *Server) Restart(t *testing.T) {
	t.Helper()
	path, _ := built()
	_, port, _ := net.SplitHostPort(s.Addr)
	s.start(t, path, port)
}

func (s *Server) start(t *testing.T, path, port string) {
	t.Helper()
	s.cmd, s.log = exec.Command(path, append([]string{s.dir, port}, s.files...)...), &bytes.Buffer{}
	s.cmd.Stderr = s.log
	in, err := s.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.in = in
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = s.cmd.Wait()
		s.cmd = nil
		t.Fatalf("the etcd server did not start: %v\n%s", err, s.log)
	}
	s.Addr = strings.TrimSpace(line)
}

// Stop ends the server; its store stays for Restart.
func (s *Server) Stop(t *testing.T) {
	t.Helper()
	if s.cmd == nil {
		return
	}
	_ = s.in.Close() // it ends by itself
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("etcd server: %v\n%s", err, s.log)
	}
	s.cmd = nil
}
