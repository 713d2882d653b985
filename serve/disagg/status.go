package disagg

import (
	"encoding/json"
	"net/http"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// statusWrite is how long a client has to take a piece of what this page answers.
const statusWrite = 30 * time.Second

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		openai.WriteError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = openai.WriteBody(w, status, append(body, '\n'), statusWrite) // a client that left is no error
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	list, _ := s.reg.Models()
	data := make([]json.RawMessage, len(list))
	for i, m := range list {
		data[i] = m.Raw
	}
	writeJSON(w, http.StatusOK, struct {
		Object string            `json:"object"`
		Data   []json.RawMessage `json:"data"`
	}{"list", data})
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	list, _ := s.reg.Models()
	for _, m := range list {
		if m.ID == id {
			writeJSON(w, http.StatusOK, m.Raw)
			return
		}
	}
	err := openai.NewError(http.StatusNotFound, openai.CodeModelNotFound, "the model %q does not exist", openai.Cut(id, 128))
	err.Param = "model"
	openai.WriteError(w, err)
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if ready, _ := s.ready(); !ready {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) healthReady(w http.ResponseWriter, _ *http.Request) {
	ready, why := s.ready()
	st := s.reg.Status()
	body := struct {
		Ready   bool   `json:"ready"`
		Reason  string `json:"reason,omitempty"`
		Context int    `json:"context_servers"`
		MinCtx  int    `json:"minimal_context_servers"`
		Gen     int    `json:"generation_servers"`
		MinGen  int    `json:"minimal_generation_servers"`
	}{ready, why, st.PreparedCtx, st.MinCtx, st.PreparedGen, st.MinGen}
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, body)
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Version string `json:"version"`
	}{s.cfg.Version})
}

// sides is a pair of values in /cluster_info.
type sides[T any] struct {
	Context    T `json:"context_servers"`
	Generation T `json:"generation_servers"`
}

type routerKind struct {
	Type string `json:"type"`
}

func (s *Server) clusterInfo(w http.ResponseWriter, _ *http.Request) {
	ready, _ := s.ready()
	st := s.reg.Status()
	body := struct {
		Ready    bool                            `json:"is_ready"`
		Workers  sides[[]discovery.WorkerStatus] `json:"current_workers"`
		Minimal  sides[int]                      `json:"minimal_instances"`
		Lists    map[string][]string             `json:"server_lists"`
		Routers  map[string]routerKind           `json:"routers"`
		Warnings []discovery.Warning             `json:"warnings"`
	}{
		Ready:   ready,
		Workers: sides[[]discovery.WorkerStatus]{orEmpty(st.Context), orEmpty(st.Gen)},
		Minimal: sides[int]{st.MinCtx, st.MinGen},
		Lists:   map[string][]string{"context": orEmpty(st.ContextList), "generation": orEmpty(st.GenList)},
		Routers: map[string]routerKind{
			"context":    {s.routers[discovery.Context].Kind()},
			"generation": {s.routers[discovery.Generation].Kind()},
		},
		Warnings: s.findings(&st),
	}
	writeJSON(w, http.StatusOK, body)
}

// findings are all warnings of the cluster.
func (s *Server) findings(st *discovery.Status) []discovery.Warning {
	return append(append(orEmpty(s.warnings), s.inert(st)...), st.Warnings...)
}

func orEmpty[T any](list []T) []T { return append([]T{}, list...) }
