package worker

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"tandem/engine/executor"
	"tandem/engine/runner"
	"tandem/serve/openai"
)

// cacheTeller is an Engine that tells which blocks it can reuse.
type cacheTeller interface {
	// CacheEvents returns the ranks' records, empty when none are kept.
	CacheEvents() []*executor.CacheEvents
	// CacheSnapshot returns a rank's index and begins to record.
	CacheSnapshot(ctx context.Context, rank int) ([]executor.CacheEvent, error)
}

const (
	eventBatch  = 256                  // events read at once
	eventGather = 5 * time.Millisecond // after the first new event, so that the blocks of a step travel together
	eventAlive  = 10 * time.Second     // between two signs of life of a stream
)

// cacheEvents is the state of /kv_cache_events.
type cacheEvents struct {
	mu      sync.Mutex
	drained []uint64 // by rank, the next event for POST

	quit chan struct{} // closed by Drain: streams end
	once sync.Once
}

// cacheTellerOf returns the engine's records, nil when it keeps none.
func cacheTellerOf(b *Backend) (cacheTeller, []*executor.CacheEvents) {
	c, ok := b.Engine.(cacheTeller)
	if !ok {
		return nil, nil
	}
	logs := c.CacheEvents()
	if len(logs) == 0 {
		return nil, nil
	}
	return c, logs
}

// wireEvent is one event on the wire.
type wireEvent struct {
	ID    uint64 `json:"event_id"`
	Rank  int    `json:"attention_dp_rank"`
	Epoch uint32 `json:"cache_epoch"`
	Gap   bool   `json:"gap"`
	Data  any    `json:"data"`
}

type createdData struct {
	Type        executor.CacheEventKind `json:"type"`
	HashAlgo    string                  `json:"hash_algo"`
	Blocks      []int                   `json:"num_blocks_per_cache_level"`
	Incarnation string                  `json:"incarnation"`
}

type storedData struct {
	Type   executor.CacheEventKind `json:"type"`
	Parent uint64                  `json:"parent_hash"`
	Blocks []storedBlock           `json:"blocks"`
}

type storedBlock struct {
	Hash     uint64 `json:"block_hash"`
	Level    int    `json:"cache_level"`
	Priority uint8  `json:"priority"`
}

type removedData struct {
	Type   executor.CacheEventKind `json:"type"`
	Hashes []uint64                `json:"block_hashes"`
}

// updatedData tells that a block is in another memory: 0 device, 1 host, 2 disk.
type updatedData struct {
	Type  executor.CacheEventKind `json:"type"`
	Hash  uint64                  `json:"block_hash"`
	Level levelChange             `json:"cache_level"`
}

type levelChange struct {
	Old int `json:"old_value"`
	New int `json:"new_value"`
}

type clearedData struct {
	Type executor.CacheEventKind `json:"type"`
}

func eventOf(rank int, e *executor.CacheEvent, info *runner.Info) wireEvent {
	out := wireEvent{ID: e.ID, Rank: rank, Epoch: e.Epoch, Gap: e.Gap}
	switch e.Kind {
	case executor.CacheCreated:
		out.Data = createdData{e.Kind, hashAlgo, e.Pools, info.Incarnation}
	case executor.CacheStored:
		d := storedData{Type: e.Kind, Parent: e.Parent, Blocks: make([]storedBlock, len(e.Blocks))}
		for i, h := range e.Blocks {
			d.Blocks[i] = storedBlock{Hash: h, Level: int(e.Level), Priority: e.Priority}
		}
		out.Data = d
	case executor.CacheRemoved:
		out.Data = removedData{e.Kind, e.Blocks}
	case executor.CacheUpdated:
		out.Data = updatedData{e.Kind, e.Blocks[0], levelChange{int(e.Was), int(e.Level)}}
	default:
		out.Data = clearedData{e.Kind}
	}
	return out
}

// needEvents returns the records or answers with an error.
func (s *Server) needEvents(w http.ResponseWriter) (*Backend, cacheTeller, []*executor.CacheEvents) {
	b := s.needBackend(w)
	if b == nil {
		return nil, nil, nil
	}
	c, logs := cacheTellerOf(b)
	if c == nil {
		openai.WriteError(w, openai.NewError(http.StatusNotFound, openai.CodeNotFound,
			"this worker keeps no cache events: it needs kv_cache_config.event_buffer_max_size above 0, enable_block_reuse, and all of its ranks in one process"))
		return nil, nil, nil
	}
	return b, c, logs
}

// drainEvents answers POST: all events since the last POST, of all ranks. The
// first answer, and one after lost events, begins with the whole index.
func (s *Server) drainEvents(w http.ResponseWriter, r *http.Request) {
	b, c, logs := s.needEvents(w)
	if b == nil {
		return
	}
	info := b.Engine.Info()
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	if s.events.drained == nil {
		s.events.drained = make([]uint64, len(logs))
	}
	out := []wireEvent{}
	for rank, log := range logs {
		at := &s.events.drained[rank]
		snapshot := *at == 0 || r.URL.Query().Get("snapshot") == "1"
		for !snapshot {
			events, next, _, ok := log.Read(*at, eventBatch)
			if snapshot = !ok; snapshot || len(events) == 0 {
				break
			}
			*at = next
			for i := range events {
				out = append(out, eventOf(rank, &events[i], &info))
			}
		}
		if !snapshot {
			continue
		}
		lost := *at > 0
		events, err := c.CacheSnapshot(r.Context(), rank)
		if err != nil {
			openai.WriteError(w, wireError(err))
			return
		}
		events[0].Gap = lost
		for i := range events {
			out = append(out, eventOf(rank, &events[i], &info))
			*at = events[i].ID + 1
		}
	}
	writeJSON(w, out)
}

// follower sends the events of one rank to a stream.
type follower struct {
	c    cacheTeller
	log  *executor.CacheEvents
	info runner.Info
	rank int
	next uint64
	snap bool // send the index first
	out  chan<- []byte
}

// run follows the rank until ctx ends or the engine does.
func (f *follower) run(ctx context.Context) error {
	for gap := false; ; {
		if f.snap {
			events, err := f.c.CacheSnapshot(ctx, f.rank)
			if err != nil {
				return err
			}
			events[0].Gap = gap
			if err := f.send(ctx, events); err != nil {
				return err
			}
			f.snap, f.next = false, events[len(events)-1].ID+1
			continue
		}
		events, next, changed, ok := f.log.Read(f.next, eventBatch)
		switch {
		case !ok:
			f.snap, gap = true, true // what was lost is made up for at once
		case len(events) > 0:
			if err := f.send(ctx, events); err != nil {
				return err
			}
			f.next = next
		default:
			f.next = next
			if err := wait(ctx, changed); err != nil {
				return err
			}
		}
	}
}

// wait returns a moment after changed is closed.
func wait(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	t := time.NewTimer(eventGather)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// send encodes events in pieces.
func (f *follower) send(ctx context.Context, events []executor.CacheEvent) error {
	for len(events) > 0 {
		n := min(len(events), eventBatch)
		var buf []byte
		for i := range events[:n] {
			data, err := json.Marshal(eventOf(f.rank, &events[i], &f.info))
			if err != nil {
				return err //nolint:wrapcheck // it cannot fail for these types
			}
			buf = append(append(append(buf, "data: "...), data...), '\n', '\n')
		}
		select {
		case f.out <- buf:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		events = events[n:]
	}
	return nil
}

// streamEvents answers GET: a stream of events that takes nothing away from other readers. Query: rank=R, all without it;
// from=ID of that rank, else what comes next; snapshot=1 sends the whole index first. A reader that falls behind gets the
// index again, as a created event with gap set.
func (s *Server) streamEvents(w http.ResponseWriter, r *http.Request) {
	b, c, logs := s.needEvents(w)
	if b == nil {
		return
	}
	from, rank, err := eventQuery(r, len(logs))
	if err != nil {
		openai.WriteError(w, err)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	out := make(chan []byte)
	for i, log := range logs {
		if rank >= 0 && i != rank {
			continue
		}
		f := follower{c: c, log: log, info: b.Engine.Info(), rank: i, out: out, snap: r.URL.Query().Get("snapshot") == "1"}
		if f.next = from; from == 0 {
			f.next = log.Next()
		}
		wg.Go(func() {
			defer cancel() // the reader must learn that it misses something
			if err := f.run(ctx); ctx.Err() == nil {
				s.log.Warn("a stream of cache events ended", "rank", f.rank, "error", err)
			}
		})
	}
	ew := openai.NewEventWriter(w, s.cfg.WriteTimeout)
	if ew.Start() != nil {
		return
	}
	alive := time.NewTicker(eventAlive)
	defer alive.Stop()
	for {
		var err error
		select {
		case buf := <-out:
			err = ew.Raw(buf)
		case <-alive.C:
			err = ew.Comment("alive")
		case <-ctx.Done():
			return
		case <-s.events.quit:
			return
		}
		if err != nil {
			return
		}
	}
}

// eventQuery reads where a stream begins: from is 0 for now, rank -1 for all.
func eventQuery(r *http.Request, ranks int) (from uint64, rank int, err error) {
	q := r.URL.Query()
	rank = -1
	if text := q.Get("rank"); text != "" {
		if rank, err = strconv.Atoi(text); err != nil || rank < 0 || rank >= ranks {
			return 0, 0, openai.Invalid("rank", "rank must be 0 to %d", ranks-1)
		}
	}
	if text := q.Get("from"); text != "" {
		if from, err = strconv.ParseUint(text, 10, 64); err != nil || from == 0 {
			return 0, 0, openai.Invalid("from", "from must be the id of an event")
		}
		if rank < 0 && ranks > 1 {
			return 0, 0, openai.Invalid("rank", "from needs a rank: each of the %d ranks numbers its own events", ranks)
		}
	}
	return from, rank, nil
}
