package wire

import (
	"slices"
	"sync/atomic"

	"tandem/engine/transfer"
)

// traffic counts what a rank moves by each byte path.
type traffic [len(pathNames)]struct {
	out, in, pulls, resumes atomic.Uint64
}

func pathIndex(name string) int { return slices.Index(pathNames[:], name) }

func (t *traffic) sent(path string, bytes int) { t[pathIndex(path)].out.Add(uint64(bytes)) }

func (t *traffic) received(path string, bytes int) { t[pathIndex(path)].in.Add(uint64(bytes)) }

func (t *traffic) resumed(path string) { t[pathIndex(path)].resumes.Add(1) }

// pulled counts a confirmed pull whose last blocks came by path, "" = there were none.
func (t *traffic) pulled(path string) {
	if path != "" {
		t[pathIndex(path)].pulls.Add(1)
	}
}

// Traffic returns what this rank moved so far, one entry for each byte path.
func (p *Puller) Traffic() []transfer.Traffic {
	out := make([]transfer.Traffic, len(pathNames))
	for i, name := range pathNames {
		t := &p.traffic[i]
		out[i] = transfer.Traffic{
			Path: name, Sent: t.out.Load(), Received: t.in.Load(), Pulls: t.pulls.Load(), Resumed: t.resumes.Load(),
		}
	}
	return out
}

// comesBy tells the log by which path the blocks of a worker come, when that is new.
func (p *Puller) comesBy(endpoint, path string) {
	p.mu.Lock()
	news := p.known[endpoint] != path
	if news && len(p.known) >= mostKnown {
		clear(p.known)
	}
	p.known[endpoint] = path
	p.mu.Unlock()
	if news {
		p.cfg.Logger.Info("KV blocks come", "endpoint", endpoint, "path", path)
	}
}

// mostKnown bounds the endpoints that comesBy remembers.
const mostKnown = 1024
