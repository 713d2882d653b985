package worker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"sync/atomic"
	"time"

	"tandem/engine/executor"
	"tandem/engine/runner"
	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// hashAlgo names the chain of block hashes.
const hashAlgo = "tandem-kv1"

// needBackend returns the backend or answers 503.
func (s *Server) needBackend(w http.ResponseWriter) *Backend {
	b := s.backend.Load()
	if b == nil {
		openai.WriteError(w, unavailable("loading", "the model is still loading: try again soon"))
	}
	return b
}

// modelCard is one entry of /v1/models.
type modelCard struct {
	ID        string `json:"id"`
	Object    string `json:"object"`
	Created   int64  `json:"created"`
	OwnedBy   string `json:"owned_by"`
	MaxLength int    `json:"max_model_len"`
}

func (s *Server) card(b *Backend) modelCard {
	info := b.Engine.Info()
	return modelCard{ID: info.Model, Object: "model", Created: s.clock.start.Unix(), OwnedBy: "tandem", MaxLength: info.MaxSeqLen}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	if b := s.needBackend(w); b != nil {
		writeJSON(w, map[string]any{"object": "list", "data": []modelCard{s.card(b)}})
	}
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	b := s.needBackend(w)
	if b == nil {
		return
	}
	card := s.card(b)
	if err := checkModel(&openai.Request{Model: r.PathValue("id")}, card.ID); err != nil {
		openai.WriteError(w, err)
		return
	}
	writeJSON(w, card)
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]string{"version": s.cfg.Version})
}

// health answers liveness of the engine and its load; it takes no engine lock
// that is held while the engine works.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	h := discovery.Health{Status: "loading"}
	ready := false
	if b := s.backend.Load(); b != nil {
		st := b.Engine.Stats(s.cfg.Stall)
		h = discovery.Health{
			Status: string(st.Health), RequestsActive: st.Alive, KVBlocksFree: st.BlocksFree + st.BlocksReusable,
			LastStepAgeMs: float64(st.LastStepAge) / float64(time.Millisecond), Reason: st.Reason,
		}
		ready = st.Health == runner.HealthOK || st.Health == runner.HealthIdle
		if ready && s.draining.Load() {
			h.Status, ready = string(runner.HealthDraining), false
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if !ready {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(h)
}

// serverInfo is discovery.ServerInfo with the members that must be there even
// when empty.
func (s *Server) serverInfo(w http.ResponseWriter, _ *http.Request) {
	b := s.needBackend(w)
	if b == nil {
		return
	}
	i := b.Engine.Info()
	out := discovery.ServerInfo{
		Role: discovery.Role(i.Role), Model: i.Model, Fingerprint: i.Fingerprint, Incarnation: i.Incarnation,
		TokensPerBlock: i.Layout.BlockTokens, HashAlgo: hashAlgo, Namespace: i.Namespace,
		Layout: discovery.KVLayout{
			Layers: i.Layout.Layers, KVHeads: i.Layout.KVHeads, HeadDim: i.Layout.HeadDim, DType: i.Layout.DType, TP: 1, PP: 1, // blocks go out whole, whatever the ranks keep of them
		},
		MaxBatchSize: i.MaxBatch, MaxNumTokens: i.MaxNumTokens, MaxSeqLen: i.MaxSeqLen, ADPSize: adpSize(i),
		ADPConversation: i.Conversations, ADPRouter: i.Router, Ranks: s.cfg.Ranks, Remote: s.cfg.Remote,
		Fork: true, Resume: i.Role != executor.Ctx, LoRAs: []discovery.LoRA{}, Bodies: []string{"json"}, AdminAddr: s.cfg.AdminAddr,
		TransferEndpoint: i.TransferEndpoint, Disagg: json.RawMessage("{}"),
	}
	_, logs := cacheTellerOf(b)
	out.KVEvents = len(logs) > 0
	if len(i.GenFirst) > 0 {
		out.Disagg = rendezvous(i)
	}
	writeJSON(w, out)
}

// rendezvous is what a gen leg is told of this worker before it has answered.
func rendezvous(i runner.Info) json.RawMessage {
	b := openai.AppendString([]byte(`{"ctx_info_endpoint":`), i.TransferEndpoint)
	b = openai.AppendString(append(b, `,"encoded_opaque_state":`...), base64.StdEncoding.EncodeToString(i.GenFirst))
	return append(b, '}')
}

// cacheStatsBody is /kv_cache_stats.
type cacheStatsBody struct {
	BlocksTotal     int              `json:"blocks_total"`
	BlocksFree      int              `json:"blocks_free"`
	BlocksActive    int              `json:"blocks_active"`
	BlocksReusable  int              `json:"blocks_reusable"`
	BlocksPinned    int              `json:"blocks_pinned_for_handoff"`
	BlocksReceiving int              `json:"blocks_receiving"`
	HandoffsOpen    int              `json:"handoffs_open"`
	Transfers       int              `json:"transfers_in_flight"`
	Active          int              `json:"requests_active"`
	Waiting         int              `json:"requests_waiting"`
	Ranks           []cacheStatsBody `json:"ranks,omitempty"`
}

func cacheStatsOf(c executor.Stats) cacheStatsBody {
	return cacheStatsBody{
		BlocksTotal: c.BlocksTotal, BlocksFree: c.BlocksFree, BlocksActive: c.BlocksActive, BlocksReusable: c.BlocksReusable,
		BlocksPinned: c.BlocksLeased, BlocksReceiving: c.BlocksReceiving, HandoffsOpen: c.HandoffsOpen,
		Transfers: c.Receiving, Active: c.Running, Waiting: c.Waiting,
	}
}

func (s *Server) cacheStats(w http.ResponseWriter, _ *http.Request) {
	b := s.needBackend(w)
	if b == nil {
		return
	}
	st := b.Engine.Stats(s.cfg.Stall)
	body := cacheStatsOf(st.Stats)
	if st.Ranks == nil {
		body.Ranks = []cacheStatsBody{body}
	}
	for i := range st.Ranks {
		body.Ranks = append(body.Ranks, cacheStatsOf(st.Ranks[i].Stats))
	}
	for rank, c := range body.Ranks {
		if sum := c.BlocksFree + c.BlocksActive + c.BlocksReusable + c.BlocksPinned + c.BlocksReceiving; sum != c.BlocksTotal {
			s.log.Error("the block counts do not add up", "rank", rank, "total", c.BlocksTotal, "sum", sum)
		}
	}
	writeJSON(w, body)
}

// maxSmallBody bounds the bodies of control requests.
const maxSmallBody = 64 << 10

// abortWait bounds the wait for the engine's answer to an abort. A long step
// may keep the engine busy; the abort stands all the same.
const abortWait = time.Second

// abort posts a cancel for a disagg_request_id: ids can be guessed, so where a
// key is configured it must be signed. It is idempotent and answers 200 for
// every well-formed body; an engine too busy to say more is settling.
func (s *Server) abort(w http.ResponseWriter, r *http.Request) {
	b := s.needBackend(w)
	if b == nil {
		return
	}
	id, reason, err := readAbort(w, r)
	if err != nil {
		openai.WriteError(w, err)
		return
	}
	if len(s.cfg.Key) > 0 && !s.cfg.Key.VerifyAbort(id, r.Header.Get(openai.HeaderAuth)) {
		openai.WriteError(w, unauthorised("the abort is not signed with internal_request_auth_key (%s)", openai.HeaderAuth))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), abortWait)
	defer cancel()
	state, err := b.Engine.Abort(ctx, id)
	if errors.Is(err, context.DeadlineExceeded) && r.Context().Err() == nil {
		state, err = executor.AbortSettling, nil
	}
	if err != nil {
		openai.WriteError(w, wireError(err))
		return
	}
	s.log.Debug("abort", "disagg_request_id", id, "state", state, "reason", openai.Cut(reason, 200))
	writeJSON(w, map[string]string{"state": string(state)})
}

func readAbort(w http.ResponseWriter, r *http.Request) (id int64, reason string, err error) {
	data, err := openai.ReadBody(w, r, maxSmallBody)
	if err != nil {
		return 0, "", err
	}
	body, err := openai.ParseBody(data)
	if err != nil {
		return 0, "", err
	}
	raw, ok := body.Get("disagg_request_id")
	var n json.Number
	if ok {
		if err := json.Unmarshal(raw, &n); err != nil {
			ok = false
		}
	}
	id, err = n.Int64() // exact, never through a float
	if !ok || err != nil || id <= 0 || raw[0] == '"' {
		return 0, "", openai.Invalid("disagg_request_id", "disagg_request_id must be a positive whole number")
	}
	if raw, ok := body.Get("reason"); ok {
		_ = json.Unmarshal(raw, &reason)
	}
	return id, reason, nil
}

// clockOffset is the worker's steady clock in seconds, and the offset a
// frontend gave it to bring its timestamps onto the frontend's. A measurement
// always reads the bare clock, so that measuring again gives the same offset.
type clockOffset struct {
	start  time.Time
	offset atomic.Uint64 // bits of a float64, seconds
}

func (c *clockOffset) get(w http.ResponseWriter, _ *http.Request) {
	at := time.Since(c.start).Seconds()
	writeJSON(w, map[string]float64{
		"receive_ts": at, "transmit_ts": time.Since(c.start).Seconds(), "offset": c.load(),
	})
}

func (c *clockOffset) load() float64 { return math.Float64frombits(c.offset.Load()) }

func (c *clockOffset) post(w http.ResponseWriter, r *http.Request) {
	data, err := openai.ReadBody(w, r, maxSmallBody)
	if err != nil {
		openai.WriteError(w, err)
		return
	}
	var body struct {
		Offset *float64 `json:"offset"`
	}
	if err := json.Unmarshal(data, &body); err != nil || body.Offset == nil {
		openai.WriteError(w, openai.Invalid("offset", "offset must be a number of seconds"))
		return
	}
	c.offset.Store(math.Float64bits(*body.Offset))
	writeJSON(w, map[string]float64{"offset": *body.Offset})
}
