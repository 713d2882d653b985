package config

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"tandem/serve/conversation"
	"tandem/serve/disagg"
	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/router"
)

// Frontend is the cluster file: what the frontend does and which workers it has.
type Frontend struct {
	Hostname      string        `mapstructure:"hostname"`
	Port          int           `mapstructure:"port"`
	Context       ServerSection `mapstructure:"context_servers"`
	Generation    ServerSection `mapstructure:"generation_servers"`
	ScheduleStyle string        `mapstructure:"schedule_style"`

	MaxRetries          int      `mapstructure:"max_retries"`
	NoRetry             bool     `mapstructure:"disagg_no_retry"`
	RetryBudget         float64  `mapstructure:"retry_budget"`       // part of all legs, 0 = no bound
	HedgeAfter          float64  `mapstructure:"hedge_first_leg_ms"` // 0 = off
	MaxInflight         int      `mapstructure:"max_inflight_requests"`
	AuthKey             string   `mapstructure:"internal_request_auth_key"` // literal, env:NAME or file:PATH
	StripMessageHistory bool     `mapstructure:"gen_strip_message_history"`
	PromptIDsAsBytes    bool     `mapstructure:"gen_tokids_ctxbytes"`
	EarlyFirstToken     bool     `mapstructure:"early_first_token"`
	Resume              bool     `mapstructure:"resume_broken_streams"`
	ExposeRouting       bool     `mapstructure:"expose_routing_headers"`
	AllowChatTemplate   bool     `mapstructure:"allow_request_chat_template"`
	EngineConv          bool     `mapstructure:"engine_conv_affinity"`
	RankSource          string   `mapstructure:"conv_affinity_dp_rank_source"`               // engine or router
	AgentHeaders        []string `mapstructure:"agent_headers"`                              // presets of package conversation
	SubHeader           string   `mapstructure:"conversation_affinity_header_for_subagents"` // empty = off
	SubScope            string   `mapstructure:"subagent_affinity_scope"`                    // empty = context
	NodeID              *int     `mapstructure:"node_id"`                                    // nil = derived from the host
	NumWorkers          int      `mapstructure:"num_workers"`                                // of other implementations; above 1 only warns
	StrictStartup       bool     `mapstructure:"strict_startup"`
	AdminAddr           string   `mapstructure:"admin_addr"` // host:port, or off

	RequestTimeout   float64  `mapstructure:"request_timeout_sec"`
	StreamIdle       float64  `mapstructure:"stream_idle_timeout_sec"`
	ConnectTimeout   float64  `mapstructure:"connect_timeout_ms"`
	HandoffLease     float64  `mapstructure:"handoff_lease_sec"`
	AdmissionTimeout *float64 `mapstructure:"admission_timeout_sec"` // nil = min(request_timeout, lease / 2)
	StartTimeout     float64  `mapstructure:"server_start_timeout_sec"`
	ShutdownGrace    float64  `mapstructure:"shutdown_grace_sec"`
	AbortGrace       float64  `mapstructure:"abort_grace_ms"`

	TLS     FrontendTLS `mapstructure:"tls"`
	Guard   `mapstructure:",squash"`
	Observe `mapstructure:",squash"`
	Capture Capture `mapstructure:"trace_capture"`
	PerfDir string  `mapstructure:"perf_metrics_output_dir"` // of files with perf records, empty = none

	Conditional  Conditional    `mapstructure:"conditional_disagg_config"`
	Cluster      Cluster        `mapstructure:"disagg_cluster"`
	Coordinator  string         `mapstructure:"disagg_coordinator_url"` // where frontends share conversations; empty = nowhere
	Metadata     MetadataServer `mapstructure:"metadata_server"`
	MetadataFile string         `mapstructure:"metadata_server_config_file"` // the same, in a file of its own
	TrustNetwork bool           `mapstructure:"trust_internal_network"`      // without a key, other hosts may register workers

	diagnostics bool // DISAGG_DIAGNOSTICS

	Worker map[string]any `mapstructure:",remain"` // worker keys for both sections
}

// Conditional is conditional_disagg_config: which requests a gen worker runs alone.
type Conditional struct {
	MaxLocalPrefill *int `mapstructure:"max_local_prefill_length"` // nil = none
}

// ServerSection lists the workers of one role.
type ServerSection struct {
	NumInstances *int           `mapstructure:"num_instances"` // nil = as many as urls
	URLs         []string       `mapstructure:"urls"`
	Router       router.Config  `mapstructure:"router"`
	Worker       map[string]any `mapstructure:",remain"` // worker keys, used by `frontend up` and partly by the router
}

// Values of conv_affinity_dp_rank_source: who says where an unknown conversation begins.
const (
	rankByEngine = "engine"
	rankByRouter = "router"
)

// foreignFrontend are keys that belong elsewhere and are only warned about.
var foreignFrontend = map[string]string{
	"kv_transfer_timeout_ms": "workers own it: set cache_transceiver_config.kv_transfer_timeout_ms in their section",
}

// DefaultFrontend returns the documented defaults.
func DefaultFrontend() Frontend {
	d := disagg.DefaultConfig()
	return Frontend{
		Observe: defaultObserve(), Capture: defaultCapture(), Hostname: "localhost", Port: 8000, ScheduleStyle: openai.ContextFirst, MaxRetries: d.MaxRetries,
		EarlyFirstToken: d.EarlyFirstToken, Resume: d.Resume, NumWorkers: 1, StrictStartup: true, RankSource: rankByEngine, AdminAddr: "127.0.0.1:0",
		RequestTimeout: d.RequestTimeout.Seconds(), StreamIdle: d.StreamIdle.Seconds(),
		ConnectTimeout: float64(d.ConnectTimeout.Milliseconds()), HandoffLease: d.HandoffLease.Seconds(),
		Guard: defaultGuard(), StartTimeout: 180, ShutdownGrace: 30, AbortGrace: float64(d.AbortGrace.Milliseconds()),
		Cluster: defaultCluster(), Metadata: defaultMetadataServer(),
	}
}

// LoadFrontend loads a cluster file over the defaults. Warnings are for the log.
func LoadFrontend(src Source) (Frontend, []string, error) {
	if src.Foreign == nil {
		src.Foreign = foreignFrontend
	}
	if src.LookupEnv == nil {
		src.LookupEnv = os.LookupEnv
	}
	f, warnings, err := Load(DefaultFrontend(), src)
	if err != nil {
		return f, warnings, err
	}
	f.fieldEnvironment(src.LookupEnv)
	if err := f.readMetadata(); err != nil {
		return f, warnings, err
	}
	if f.RankSource == rankByRouter && !f.EngineConv {
		warnings = append(warnings, "conv_affinity_dp_rank_source has no effect without engine_conv_affinity")
	}
	if f.Coordinator != "" && !f.remembers() {
		warnings = append(warnings, "disagg_coordinator_url has no effect: no router of type conversation or hybrid remembers where conversations live")
	}
	if f.NumWorkers > 1 {
		warnings = append(warnings, "num_workers is ignored: one process uses all cores")
	}
	return f, warnings, nil
}

// remembers tells whether a router keeps what frontends can share of conversations.
func (f *Frontend) remembers() bool {
	kinds := []string{f.Context.Router.Type, f.Generation.Router.Type}
	return slices.Contains(kinds, router.KindConversation) || slices.Contains(kinds, router.KindHybrid)
}

// fieldEnvironment reads the variables that the field knows under other names.
func (f *Frontend) fieldEnvironment(lookup func(string) (string, bool)) {
	truthy := func(name string) bool {
		val, _ := lookup(name)
		on, _ := strconv.ParseBool(strings.TrimSpace(val))
		return on
	}
	if truthy("DISAGG_NO_RETRY") {
		f.NoRetry = true
	}
	if truthy("ENGINE_CONV_AFFINITY") || truthy("DYN_ENGINE_CONV_AFFINITY") {
		f.EngineConv = true
	}
	f.diagnostics = truthy("DISAGG_DIAGNOSTICS")
}

// Diagnostics tells whether the variable DISAGG_DIAGNOSTICS asks for a line for each event in the life of a request.
func (f Frontend) Diagnostics() bool { return f.diagnostics }

// Validate reports the first thing that is wrong, by its YAML key. It does not ask for workers: see ValidateServe.
func (f Frontend) Validate() error {
	switch {
	case f.Port < 0 || f.Port > 65535:
		return fmt.Errorf("port: %d is outside 0..65535 (0 = any free one)", f.Port)
	case f.Hostname == "":
		return fmt.Errorf("hostname: must not be empty; use 0.0.0.0 for all addresses")
	case f.ScheduleStyle != openai.ContextFirst && f.ScheduleStyle != openai.GenerationFirst:
		return fmt.Errorf("schedule_style: %q is neither %s nor %s", f.ScheduleStyle, openai.ContextFirst, openai.GenerationFirst)
	case f.RankSource != rankByEngine && f.RankSource != rankByRouter:
		return fmt.Errorf("conv_affinity_dp_rank_source: %q is neither %s nor %s", f.RankSource, rankByEngine, rankByRouter)
	case f.NumWorkers < 1:
		return fmt.Errorf("num_workers: %d must be at least 1", f.NumWorkers)
	case f.StartTimeout <= 0:
		return fmt.Errorf("server_start_timeout_sec: must be above 0")
	case f.ShutdownGrace <= 0:
		return fmt.Errorf("shutdown_grace_sec: must be above 0")
	}
	if f.AdminAddr != "off" {
		if _, _, err := net.SplitHostPort(f.AdminAddr); err != nil {
			return fmt.Errorf("admin_addr: %q is neither host:port nor off", f.AdminAddr)
		}
	}
	if err := f.Observe.validate(); err != nil {
		return err
	}
	if err := f.Capture.validate(); err != nil {
		return err
	}
	if err := f.validateStores(); err != nil {
		return err
	}
	if err := f.Metadata.validate(); err != nil {
		return err
	}
	if f.Cluster.On() && f.Metadata.On() {
		return fmt.Errorf("metadata_server: workers come by it or by disagg_cluster, not both")
	}
	if err := f.Guard.validate(); err != nil {
		return err
	}
	if err := f.TLS.validate(); err != nil {
		return err
	}
	if err := f.sections(); err != nil {
		return err
	}
	if kind := f.Generation.Router.Type; f.Conditional.MaxLocalPrefill != nil && kind != router.KindKVAware && kind != router.KindHybrid {
		return fmt.Errorf("conditional_disagg_config: needs generation_servers.router.type %s or %s, which know what a gen worker has; it is %q",
			router.KindKVAware, router.KindHybrid, cmp.Or(kind, router.KindRoundRobin))
	}
	return f.disagg(nil).Validate() // names the key already
}

// sections checks both server sections, alone and against each other.
func (f Frontend) sections() error {
	known := append(Keys[Frontend](), workerKeys()...)
	for _, key := range sortedKeys(f.Worker) {
		if !slices.Contains(workerKeys(), key) {
			return unknownKey(key, key, known)
		}
	}
	for _, sec := range []struct {
		name string
		s    ServerSection
	}{{"context_servers", f.Context}, {"generation_servers", f.Generation}} {
		if err := sec.s.validate(sec.name, f.Worker); err != nil {
			return err
		}
		switch n := sec.s.NumInstances; {
		case f.Joining() && len(sec.s.URLs) > 0:
			return fmt.Errorf("%s.urls: workers are listed or register (%s), not both", sec.name, f.joining())
		case !f.Joining() && n != nil && *n < 1:
			return fmt.Errorf("%s.num_instances: %d must be at least 1", sec.name, *n)
		}
	}
	if a, b := f.Context.Worker["model"], f.Generation.Worker["model"]; a != nil && b != nil && a != b {
		return fmt.Errorf("generation_servers.model: is %v but context_servers.model is %v; both roles need the same model", b, a)
	}
	return f.mixed()
}

func (s ServerSection) validate(name string, shared map[string]any) error {
	known := append(Keys[ServerSection](), workerKeys()...)
	for _, key := range sortedKeys(s.Worker) {
		if !slices.Contains(workerKeys(), key) {
			return unknownKey(name+"."+key, key, known)
		}
		if val, ok := shared[key]; ok && !reflect.DeepEqual(val, s.Worker[key]) {
			return fmt.Errorf("%s.%s: is %v here and %v at the top level; set it once", name, key, s.Worker[key], val)
		}
	}
	seen := map[string]bool{}
	for i, text := range s.URLs {
		id, _, err := discovery.ParseURL(text)
		if err != nil {
			return fmt.Errorf("%s.urls[%d]: %w", name, i, err)
		}
		if seen[id] {
			return fmt.Errorf("%s.urls[%d]: %s is listed twice", name, i, id)
		}
		seen[id] = true
	}
	switch n := s.NumInstances; {
	case n != nil && *n < 0:
		return fmt.Errorf("%s.num_instances: %d is negative", name, *n)
	case n != nil && len(s.URLs) > 0 && *n != len(s.URLs):
		return fmt.Errorf("%s: num_instances is %d but urls has %d entries", name, *n, len(s.URLs))
	}
	if err := s.Router.Validate(); err != nil {
		return fmt.Errorf("%s.router.%w", name, err)
	}
	return nil
}

// mixed checks workers that are listed in both sections: they are one process, so their arguments must agree.
func (f Frontend) mixed() error {
	for _, a := range f.Context.URLs {
		for _, b := range f.Generation.URLs {
			ida, _, _ := discovery.ParseURL(a)
			idb, _, _ := discovery.ParseURL(b)
			if ida == idb && !reflect.DeepEqual(normal(f.Context.Worker), normal(f.Generation.Worker)) {
				return fmt.Errorf("worker %s is in both sections, whose worker arguments differ", ida)
			}
		}
	}
	return nil
}

func normal(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

// workerKeys are the keys that a worker's file may have, and so a server section.
func workerKeys() []string {
	keys := append(Keys[Worker](), "model", "otlp_traces_endpoint")
	for path := range foreignWorker {
		top, _, _ := strings.Cut(path, ".")
		keys = append(keys, top)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// ValidateServe checks what `frontend serve` needs besides: workers to talk to.
func (f Frontend) ValidateServe() error {
	if f.Joining() {
		return nil
	}
	for i, s := range []ServerSection{f.Context, f.Generation} {
		if len(s.URLs) == 0 {
			name := []string{"context_servers", "generation_servers"}[i]
			return fmt.Errorf("config: %s.urls: list at least one worker (host:port) in the file that -c names; frontend up starts its own workers", name)
		}
	}
	return nil
}

// UnusedByServe lists worker keys that only `frontend up` acts on, for a warning.
func (f Frontend) UnusedByServe() (keys []string) {
	keys = append(keys, sortedKeys(f.Worker)...)
	for _, key := range sortedKeys(f.Context.Worker) {
		keys = append(keys, "context_servers."+key)
	}
	for _, key := range sortedKeys(f.Generation.Worker) {
		keys = append(keys, "generation_servers."+key)
	}
	if f.Context.Router.NeedsTokens() || f.Generation.Router.NeedsTokens() { // by the tokenizer of that model
		keys = slices.DeleteFunc(keys, func(key string) bool { return key == "model" || strings.HasSuffix(key, ".model") })
	}
	return keys
}

// Disagg converts to the configuration of serve/disagg and reads the key that internal_request_auth_key names.
func (f Frontend) Disagg(version string) (disagg.Config, error) {
	key, err := Secret("internal_request_auth_key", f.AuthKey)
	if err != nil {
		return disagg.Config{}, fmt.Errorf("config: %w", err)
	}
	cfg := f.disagg([]byte(key))
	if err := f.Guard.apply(&cfg); err != nil {
		return cfg, fmt.Errorf("config: %w", err)
	}
	cfg.Version = version
	if err := cfg.Validate(); err != nil {
		return cfg, fmt.Errorf("config: %w", err)
	}
	return cfg, nil
}

func (f Frontend) disagg(key []byte) disagg.Config {
	c := disagg.DefaultConfig()
	c.RequestTimeout, c.StreamIdle, c.HandoffLease = seconds(f.RequestTimeout), seconds(f.StreamIdle), seconds(f.HandoffLease)
	c.ConnectTimeout, c.AbortGrace = seconds(f.ConnectTimeout/1000), seconds(f.AbortGrace/1000)
	c.AdmissionTimeout = min(c.RequestTimeout, c.HandoffLease/2)
	if f.AdmissionTimeout != nil {
		c.AdmissionTimeout = seconds(*f.AdmissionTimeout)
	}
	c.MaxRetries, c.NoRetry, c.MaxInflight = f.MaxRetries, f.NoRetry, f.MaxInflight
	c.HedgeAfter, c.GenerationFirst = seconds(f.HedgeAfter/1000), f.ScheduleStyle == openai.GenerationFirst
	c.MaxBodyMemory = int64(f.BodyMemoryMB) << 20
	c.MaxQueued, c.QueueTimeout = f.MaxQueued, seconds(f.QueueTimeout)
	c.StripMessageHistory, c.PromptIDsAsBytes = f.StripMessageHistory, f.PromptIDsAsBytes
	c.EarlyFirstToken, c.ExposeRouting, c.Resume = f.EarlyFirstToken, f.ExposeRouting, f.Resume
	c.EngineConvAffinity, c.RankHints = f.EngineConv, f.RankSource == rankByRouter
	c.Conversations = conversation.Rules{Agents: f.AgentHeaders, ParentHeader: f.SubHeader, Scope: conversation.Scope(f.SubScope)}
	c.RetryBudget = f.RetryBudget
	c.AllowChatTemplate = f.AllowChatTemplate
	c.ReturnPerf, c.PerfRecords, c.RequestLog = f.ReturnPerf, f.PerfRecords, f.Log.Requests()
	if n := f.Conditional.MaxLocalPrefill; n != nil {
		c.Conditional, c.MaxLocalPrefill = true, *n
	}
	c.AuthKey = key
	c.NodeID, c.ProcessID = disagg.DefaultNodeID(), disagg.DefaultProcessID()
	if f.NodeID != nil {
		c.NodeID = *f.NodeID
	}
	return c
}

// seconds converts a YAML number; absurd values become the longest duration there is.
func seconds(sec float64) time.Duration {
	const limit = 10 * 365 * 24 * time.Hour
	if sec >= limit.Seconds() {
		return limit
	}
	return time.Duration(sec * float64(time.Second))
}

// RouterConfig returns the router block of a section, completed with what the section says of its workers.
func (s ServerSection) RouterConfig() router.Config {
	c := s.Router
	kv, _ := s.Worker["kv_cache_config"].(map[string]any)
	blocks := c.Type == router.KindKVAware || c.Type == router.KindHybrid
	if n, ok := kv["tokens_per_block"].(int); ok && (blocks || c.Type == router.KindConversation) && c.TokensPerBlock == 0 {
		c.TokensPerBlock = n
	}
	if n, ok := s.Worker["max_batch_size"].(int); ok && blocks && c.MaxBatchSize == 0 {
		c.MaxBatchSize = n
	}
	return c
}

// Discovery returns the static list of workers, of which readiness needs one of each, or what it needs of those that register.
func (f Frontend) Discovery() discovery.Config {
	if f.Cluster.On() {
		return discovery.Config{MinContext: f.Cluster.Minimal.Context, MinGen: f.Cluster.Minimal.Generation}
	}
	return discovery.Config{Context: f.Context.URLs, Generation: f.Generation.URLs, MinContext: 1, MinGen: 1}
}

// Listen is the public address.
func (f Frontend) Listen() string { return net.JoinHostPort(f.Hostname, strconv.Itoa(f.Port)) }

// WorkerFile returns the worker keys of a section with the top-level ones, as `frontend up` passes them to its children.
func (f Frontend) WorkerFile(s ServerSection) map[string]any {
	out := map[string]any{}
	for _, m := range []map[string]any{f.Worker, s.Worker} {
		for k, v := range m {
			if k != "model" {
				out[k] = v
			}
		}
	}
	shared := f.Observe
	if f.PerfDir != "" && shared.PerfRecords == 0 {
		shared.PerfRecords = disagg.PerfRing
	}
	shared.share(out)
	if f.AuthKey != "" {
		out["internal_request_auth_key"] = f.AuthKey
	}
	if f.AllowChatTemplate {
		out["allow_request_chat_template"] = true
	}
	if f.TrustNetwork {
		out["trust_internal_network"] = true
	}
	return out
}

// Model returns the model that a section or the top level names, "" if none does.
func (f Frontend) Model() string {
	for _, m := range []map[string]any{f.Worker, f.Context.Worker, f.Generation.Worker} {
		if name, ok := m["model"].(string); ok && name != "" {
			return name
		}
	}
	return ""
}
