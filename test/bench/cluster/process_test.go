package cluster

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const limit = 30 * time.Second

func TestReadyReadsAddresses(t *testing.T) {
	p, err := Start(t.Context(), []string{"PORT=1"}, "sh", "-c", `echo starting; echo "TANDEM_READY url=http://a:$PORT role=mixed admin=http://b:2"; exec sleep 300`)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	if err := p.Ready(t.Context(), limit); err != nil || p.URL != "http://a:1" || p.Admin != "http://b:2" {
		t.Errorf("%v, url %q, admin %q", err, p.URL, p.Admin)
	}
	p.Stop()
	p.Stop() // has ended
	(*Process)(nil).Stop()
}

func TestReadyTellsLastWords(t *testing.T) {
	p, err := Start(t.Context(), nil, "sh", "-c", "echo no such model; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(t.Context(), limit); err == nil || !strings.Contains(err.Error(), "no such model") {
		t.Error(err)
	}
	if _, err := Start(t.Context(), nil, "/no/such/program"); err == nil || !strings.Contains(err.Error(), "program") {
		t.Error(err)
	}
}

// What a program has started ends with it: a child holds a pipe open as long as it lives.
func TestStopEndsChildren(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "held")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Start(t.Context(), nil, "sh", "-c", `sleep 300 >"$0" & wait`, pipe)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	held, err := os.Open(pipe) // waits for the child
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	p.Stop()
	if n, err := held.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("%d bytes, %v", n, err)
	}
}
