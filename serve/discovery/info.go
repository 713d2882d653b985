package discovery

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// Role is what a worker accepts, or which of the two legs is meant.
type Role string

// The roles on the wire.
const (
	Context    Role = "context"
	Generation Role = "generation"
	Mixed      Role = "mixed"
)

// Other returns the role of the other leg.
func (r Role) Other() Role {
	if r == Context {
		return Generation
	}
	return Context
}

// Serves tells whether a worker of role r may run a leg of role leg. Workers of
// other engines tell no role: they serve the legs they are listed for.
func (r Role) Serves(leg Role) bool { return r == leg || r == Mixed || r == "" }

// KVLayout is the part of a worker's cache layout that the pairing check compares.
type KVLayout struct {
	Layers  int    `json:"layers"`
	KVHeads int    `json:"kv_heads"`
	HeadDim int    `json:"head_dim"`
	DType   string `json:"dtype"`
	TP      int    `json:"tp"`
	PP      int    `json:"pp"`
	Reshard bool   `json:"reshard"` // transfers convert between different tp and pp
}

// LoRA names one adapter a worker has loaded.
type LoRA struct {
	Name       string `json:"name"`
	Generation int    `json:"generation"`
}

// ServerInfo is a worker's answer to GET /server_info.
type ServerInfo struct {
	Role             Role            `json:"role"`
	Model            string          `json:"model"`
	Fingerprint      string          `json:"model_fingerprint"`
	Incarnation      string          `json:"incarnation"` // new on every process start
	TokensPerBlock   int             `json:"tokens_per_block"`
	HashAlgo         string          `json:"kv_cache_hash_algo"`
	Namespace        string          `json:"kv_cache_namespace"`
	Layout           KVLayout        `json:"kv_layout"`
	MaxBatchSize     int             `json:"max_batch_size"` // per rank
	MaxNumTokens     int             `json:"max_num_tokens"`
	MaxSeqLen        int             `json:"max_seq_len"`
	ADPSize          int             `json:"adp_size"`
	ADPConversation  bool            `json:"adp_conversation_affinity"`
	ADPRouter        string          `json:"adp_router,omitempty"` // the effective one, of an instance with several ranks
	Ranks            string          `json:"ranks,omitempty"`      // of this process, when the instance spreads over several
	Remote           bool            `json:"remote,omitempty"`     // rank 0, which serves requests, is in another process
	KVEvents         bool            `json:"kv_events"`
	LoRAs            []LoRA          `json:"loras"`
	Fork             bool            `json:"fork"`
	Resume           bool            `json:"resume"`
	Bodies           []string        `json:"bodies"`
	AdminAddr        string          `json:"admin_addr"`
	TransferEndpoint string          `json:"transfer_endpoint"`
	Disagg           json.RawMessage `json:"disaggregated_params,omitempty"`
}

// Health is a worker's answer to GET /health: state and load.
type Health struct {
	Status         string  `json:"status"` // ok, idle, stalled, loading, draining
	RequestsActive int     `json:"requests_active"`
	LastStepAgeMs  float64 `json:"last_step_age_ms"`
	KVBlocksFree   int     `json:"kv_blocks_free"`
	Reason         string  `json:"reason,omitempty"` // what keeps it from serving, in words
}

// Instance is one worker as placement and legs see it. It is a snapshot; its slices and Info are shared and not changed.
type Instance struct {
	ID     string      // host:port, the identity of an address
	URL    string      // http://host:port without a final slash
	Info   *ServerInfo // nil only in the zero Instance
	Models []Model     // what GET /v1/models listed
}

// Model is one entry of a worker's model list.
type Model struct {
	ID  string
	Raw json.RawMessage // the entry as the worker wrote it
}

// HasModel tells whether the instance lists a model of that name.
func (i Instance) HasModel(name string) bool {
	for _, m := range i.Models {
		if m.ID == name {
			return true
		}
	}
	return false
}

// RankNames says which ranks "2" or "2-3" are, for messages.
func RankNames(ranks string) string {
	if strings.Contains(ranks, "-") {
		return "ranks " + ranks
	}
	return "rank " + ranks
}

// ParseURL reads a worker address: host:port, http://host:port, or [v6]:port. It returns the identity (host:port in lower
// case) and the base URL.
func ParseURL(text string) (id, base string, err error) {
	raw := strings.TrimSpace(text)
	if !strings.Contains(raw, "://") {
		raw = "http://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "", "", fmt.Errorf("worker address %q: want host:port, http://host:port or [v6]:port", text)
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return "", "", fmt.Errorf("worker address %q: scheme %q is not supported, use http or https", text, u.Scheme)
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil || u.Fragment != "" {
		return "", "", fmt.Errorf("worker address %q: give only host and port", text)
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil || host == "" {
		return "", "", fmt.Errorf("worker address %q: want host:port, http://host:port or [v6]:port", text)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", "", fmt.Errorf("worker address %q: port must be 1..65535", text)
	}
	id = strings.ToLower(net.JoinHostPort(host, port))
	return id, u.Scheme + "://" + id, nil
}
