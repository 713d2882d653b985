package discovery

import (
	"cmp"
	"net"
	"strconv"
	"time"
)

// WorkerStatus is one worker in /cluster_info.
type WorkerStatus struct {
	ID          string `json:"-"` // of the address, host:port
	WorkerID    string `json:"worker_id"`
	Host        string `json:"host"`
	Port        int    `json:"port"`
	Role        Role   `json:"role"`
	Model       string `json:"model,omitempty"` // of the last good probe
	Incarnation string `json:"incarnation"`
	Routable    bool   `json:"routable"`
	ADPSize     int    `json:"adp_size,omitempty"` // ranks that requests are placed on
	// ADPConversation: the worker keeps a conversation on its rank.
	ADPConversation bool   `json:"adp_conversation_affinity,omitempty"`
	LastSeenMs      int64  `json:"last_seen_ms"`     // age of the last good probe, -1 = never
	Status          string `json:"status,omitempty"` // what the worker said of itself, or "down"
	// Breaker is open or half_open while connection failures keep requests away, else empty.
	Breaker BreakerState `json:"breaker,omitempty"`
	Error   string       `json:"error,omitempty"`
}

// Status is the cluster as a whole.
type Status struct {
	Ready                bool
	Context, Gen         []WorkerStatus
	PreparedCtx, MinCtx  int
	PreparedGen, MinGen  int
	Warnings             []Warning
	ContextList, GenList []string
}

// Readiness is how many workers of each leg are prepared, and how many must be.
type Readiness struct{ PreparedCtx, MinCtx, PreparedGen, MinGen int }

// OK tells whether there are enough.
func (r Readiness) OK() bool { return r.PreparedCtx >= r.MinCtx && r.PreparedGen >= r.MinGen }

// Readiness is the part of Status that each request asks for.
func (r *Registry) Readiness() Readiness {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.readiness()
}

func (r *Registry) readiness() Readiness {
	return Readiness{r.table.prepared(Context), r.cfg.MinContext, r.table.prepared(Generation), r.cfg.MinGen}
}

// Status returns what /cluster_info and /health/ready show.
func (r *Registry) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status()
}

func (r *Registry) status() Status {
	t, now, ready := r.table, r.now(), r.readiness()
	st := Status{
		Ready: ready.OK(), PreparedCtx: ready.PreparedCtx, MinCtx: ready.MinCtx,
		PreparedGen: ready.PreparedGen, MinGen: ready.MinGen, Warnings: append(t.warnings(), r.extra...),
	}
	for _, e := range t.order {
		if !e.left.IsZero() {
			continue
		}
		ws := e.status(now)
		if e.legs[Context] {
			st.Context, st.ContextList = append(st.Context, ws), append(st.ContextList, e.id)
		}
		if e.legs[Generation] {
			st.Gen, st.GenList = append(st.Gen, ws), append(st.GenList, e.id)
		}
	}
	return st
}

func (e *entry) status(now time.Time) WorkerStatus {
	host, portText, _ := net.SplitHostPort(e.id)
	port, _ := strconv.Atoi(portText)
	ws := WorkerStatus{
		ID: e.id, WorkerID: cmp.Or(e.workerID, e.id), Host: host, Port: port, Role: e.inst.Info.Role, Model: e.inst.Info.Model, Incarnation: e.inst.Info.Incarnation,
		ADPSize: e.inst.Info.ADPSize, ADPConversation: e.inst.Info.ADPConversation,
		Routable: e.routable() && e.refused == "", LastSeenMs: -1, Status: e.health.Status, Error: e.lastError,
	}
	if ws.Role == "" {
		ws.Role = Generation
		if e.legs[Context] {
			ws.Role = Context
		}
	}
	if !e.breaker.closed() {
		ws.Breaker = e.breaker.state(now)
	}
	if !e.lastSeen.IsZero() {
		ws.LastSeenMs = now.Sub(e.lastSeen).Milliseconds()
	}
	switch {
	case e.lastError == "":
		ws.Error = e.refused
	case !e.prepared:
		ws.Status = "down" // what it last said of itself no longer holds
	}
	return ws
}
