package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
)

// maxProbeBytes bounds a worker's answer to a probe.
const maxProbeBytes = 4 << 20

// Prober asks one worker how it is. Gone is wrapped in the error when nothing listens at the address.
type Prober interface {
	Probe(ctx context.Context, baseURL string) (Health, ServerInfo, []Model, error)
}

// ErrGone says that no process accepts connections at a worker's address, so what ran there has ended.
var ErrGone = errors.New("nothing listens there")

// ErrMute says that a worker gave no answer to a probe, not even that it is unwell.
var ErrMute = errors.New("it does not answer")

// wantsTLS begins what an HTTP server of Go answers on a TLS listener to a request that is not encrypted.
const wantsTLS = "Client sent an HTTP request to an HTTPS server"

// HTTPProber probes over HTTP. Client must not follow the request's proxies.
type HTTPProber struct{ Client *http.Client }

// Probe fetches /health, /server_info and /v1/models. A worker without a model list serves the model its info names.
func (p HTTPProber) Probe(ctx context.Context, baseURL string) (h Health, info ServerInfo, models []Model, err error) {
	body, status, err := p.get(ctx, baseURL+"/health")
	if err != nil {
		return h, info, nil, err
	}
	// A body is optional: other engines answer with an empty one.
	_ = json.Unmarshal(body, &h)
	if status != http.StatusOK {
		if h.Status != "" {
			return h, info, nil, fmt.Errorf("health is %d, status %q", status, h.Status)
		}
		if status == http.StatusBadRequest && strings.HasPrefix(string(body), wantsTLS) {
			return h, info, nil, errors.New("it speaks TLS only: its address must be https://host:port, see tls.workers")
		}
		return h, info, nil, fmt.Errorf("health is %d", status)
	}
	body, status, err = p.get(ctx, baseURL+"/server_info")
	if err != nil {
		return h, info, nil, err
	}
	if status != http.StatusOK {
		return h, info, nil, fmt.Errorf("/server_info answered %d", status)
	}
	if err := json.Unmarshal(body, &info); err != nil {
		return h, info, nil, fmt.Errorf("/server_info is not readable: %w", err)
	}
	models, err = p.models(ctx, baseURL, info)
	return h, info, models, err
}

func (p HTTPProber) models(ctx context.Context, baseURL string, info ServerInfo) ([]Model, error) {
	body, status, err := p.get(ctx, baseURL+"/v1/models")
	if err != nil {
		return nil, err
	}
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if status == http.StatusOK && json.Unmarshal(body, &list) != nil {
		return nil, errors.New("/v1/models is not readable")
	}
	var out []Model
	for _, raw := range list.Data {
		var m struct {
			ID string `json:"id"`
		}
		if json.Unmarshal(raw, &m) == nil && m.ID != "" {
			out = append(out, Model{ID: m.ID, Raw: raw})
		}
	}
	if len(out) == 0 && info.Model != "" {
		raw, err := json.Marshal(map[string]any{"id": info.Model, "object": "model", "created": 0, "owned_by": "tandem"})
		if err != nil {
			return nil, fmt.Errorf("describe model %q: %w", info.Model, err)
		}
		out = append(out, Model{ID: info.Model, Raw: raw})
	}
	return out, nil
}

func (p HTTPProber) get(ctx context.Context, url string) ([]byte, int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, 0, fmt.Errorf("probe %s: %w", url, err)
	}
	resp, err := p.Client.Do(req)
	if err != nil {
		if dialFailed(err) && ctx.Err() == nil {
			return nil, 0, fmt.Errorf("probe: %w: %w", ErrGone, err)
		}
		return nil, 0, fmt.Errorf("probe: %w: %w", ErrMute, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBytes))
	if err != nil {
		return nil, 0, fmt.Errorf("probe %s: %w: %w", url, ErrMute, err)
	}
	return body, resp.StatusCode, nil
}

// dialFailed tells whether no TCP connection came about for the peer's reason (the kernel accepts for a busy process, so
// this means there is none). A lack of local descriptors is not such a reason.
func dialFailed(err error) bool {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "dial" {
		return false
	}
	return op.Timeout() || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.Is(err, syscall.ENETUNREACH)
}
