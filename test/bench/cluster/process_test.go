package cluster

import (
	"strings"
	"testing"
	"time"
)

const limit = 30 * time.Second

func TestReadyReadsAddresses(t *testing.T) {
	p, err := Start(t.Context(), "sh", "-c", `echo starting; echo "TANDEM_READY url=http://a:1 role=mixed admin=http://b:2"; exec sleep 300`)
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
	p, err := Start(t.Context(), "sh", "-c", "echo no such model; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(t.Context(), limit); err == nil || !strings.Contains(err.Error(), "no such model") {
		t.Error(err)
	}
	if _, err := Start(t.Context(), "/no/such/program"); err == nil || !strings.Contains(err.Error(), "program") {
		t.Error(err)
	}
}
