package config

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"tandem/serve/router"
)

const twoSections = "context_servers: {urls: [\"a:1\"]}\ngeneration_servers: {urls: [\"b:1\"]}\n"

func loadFrontend(yaml string, pairs ...string) (Frontend, []string, error) {
	return LoadFrontend(Source{Data: []byte(yaml), LookupEnv: env(pairs...)})
}

func TestFrontendExampleFile(t *testing.T) {
	f, warnings, err := LoadFrontend(Source{File: "../../configs/cluster.yaml", LookupEnv: env()})
	if err != nil || len(warnings) != 0 {
		t.Fatalf("%v %q", err, warnings)
	}
	if err := f.ValidateServe(); err != nil {
		t.Fatal(err)
	}
	if f.Listen() != "localhost:8000" || f.Context.RouterConfig().Type != router.KindConversation {
		t.Errorf("%+v", f)
	}
	// The file shows the defaults, and says so.
	def := DefaultFrontend()
	def.Context, def.Generation = f.Context, f.Generation
	a, err1 := f.Disagg("v")
	b, err2 := def.Disagg("v")
	if err1 != nil || err2 != nil || !equalDisagg(a, b) {
		t.Errorf("the example's values differ from the defaults:\n%+v\n%+v", a, b)
	}
}

func TestFrontendDefaultsOfTheSpecification(t *testing.T) {
	c, err := DefaultFrontend().Disagg("v")
	if err != nil {
		t.Fatal(err)
	}
	if c.RequestTimeout != 180*time.Second || c.StreamIdle != 60*time.Second || c.ConnectTimeout != 2*time.Second ||
		c.AdmissionTimeout != 30*time.Second || c.AbortGrace != 2*time.Second || c.MaxRetries != 1 || !c.EarlyFirstToken || c.ExposeRouting {
		t.Errorf("%+v", c)
	}
}

func TestFrontendErrors(t *testing.T) {
	cases := []struct{ name, yaml, want string }{
		{"counts differ", "context_servers: {urls: [\"a:1\", \"b:1\"], num_instances: 1}", "num_instances is 1 but urls has 2"},
		{"node id", "node_id: 256", "node_id: 256"},
		{"boolean text", "gen_strip_message_history: \"yes\"", "gen_strip_message_history"},
		{"two models", "context_servers: {model: a}\ngeneration_servers: {model: b}", "both roles need the same model"},
		{"misspelt", "schedule_styel: x", `"schedule_style"`},
		{"misspelt in a section", "context_servers: {ulrs: []}", `unknown key "context_servers.ulrs"; the nearest known key is "urls"`},
		{"misspelt worker key", "max_batch_sise: 1", `"max_batch_size"`},
		{"misspelt in a router", "context_servers: {router: {tipe: x}}", `"type"`},
		{"conflict", "model: a\ncontext_servers: {model: b}", "context_servers.model"},
		{"scope", "subagent_affinity_scope: all", `subagent_affinity_scope: "all" is neither context nor both`},
		{"hedged generation first", "schedule_style: generation_first\nhedge_first_leg_ms: 100", "hedge_first_leg_ms: a leg can be hedged in schedule_style context_first only"},
		{"unknown style", "schedule_style: x", `schedule_style: "x" is neither context_first nor generation_first`},
		{"conditional", "conditional_disagg_config: {max_local_prefill_length: 3}", "conditional_disagg_config: needs generation_servers.router.type"},
		{"negative local prefill", "generation_servers: {router: {type: hybrid}}\nconditional_disagg_config: {max_local_prefill_length: -1}", "max_local_prefill_length: -1 is negative"},
		{"cluster", "disagg_cluster: {cluster_uri: x}", "disagg_cluster.cluster_uri"},
		{"rank source", "conv_affinity_dp_rank_source: worker", `conv_affinity_dp_rank_source: "worker" is neither engine nor router`},
		{"router foo", "generation_servers: {router: {type: foo}}", "generation_servers.router.type: unknown router \"foo\"; supported: round_robin, load_balancing, conversation"},
		{"duplicate url", "context_servers: {urls: [\"a:1\", \"http://A:1\"]}", "context_servers.urls[1]: a:1 is listed twice"},
		{"bad url", "context_servers: {urls: [a]}", "context_servers.urls[0]"},
		{"mixed arguments", "context_servers: {urls: [\"a:1\"], max_batch_size: 1}\ngeneration_servers: {urls: [\"a:1\"], max_batch_size: 2}", "a:1 is in both sections"},
		{"port", "port: 65536", "port: 65536"},
		{"timeout", "request_timeout_sec: 0", "request_timeout_sec"},
		{"admission", "admission_timeout_sec: 60", "admission_timeout_sec"},
		{"retries", "max_retries: 11", "max_retries"},
		{"admin", "admin_addr: here", "admin_addr"},
		{"zero instances", "context_servers: {num_instances: 0}", "num_instances"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := loadFrontend(c.yaml)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, c.want)
			}
		})
	}
}

func TestFrontendAccepts(t *testing.T) {
	f, warnings, err := loadFrontend(twoSections+`
engine_conv_affinity: false
perf_metrics_max_requests: 0
num_workers: 4
kv_transfer_timeout_ms: 1000
backend: pytorch
`, "DISAGG_NO_RETRY", "1", "TANDEM_CONTEXT_SERVERS__ROUTER__TYPE", "load_balancing", "TANDEM_PORT", "9")
	if err != nil {
		t.Fatal(err)
	}
	if !f.NoRetry || f.Context.Router.Type != "load_balancing" || f.Port != 9 || len(warnings) != 2 {
		t.Errorf("%+v %q", f, warnings)
	}
	if got := f.UnusedByServe(); len(got) != 1 || got[0] != "backend" {
		t.Errorf("unused %q", got)
	}
	for router, want := range map[string]int{"round_robin": 2, "kv_cache_aware": 1} { // which takes the model's tokenizer
		f, _, err := loadFrontend("context_servers: {model: a, router: {type: " + router + "}}\nbackend: auto")
		if got := f.UnusedByServe(); err != nil || len(got) != want {
			t.Errorf("%s: unused %q, %v", router, got, err)
		}
	}
	for _, name := range []string{"ENGINE_CONV_AFFINITY", "DYN_ENGINE_CONV_AFFINITY", "TANDEM_ENGINE_CONV_AFFINITY"} {
		f, _, err := loadFrontend("", name, "true")
		if err != nil {
			t.Fatal(err)
		}
		if c, err := f.Disagg("v"); err != nil || !c.EngineConvAffinity || c.RankHints {
			t.Errorf("%s: %+v %v", name, c, err)
		}
	}
	f, warnings, err = loadFrontend("conv_affinity_dp_rank_source: router")
	if c := f.disagg(nil); err != nil || !c.RankHints || len(warnings) != 1 {
		t.Errorf("%+v %q %v", c, warnings, err)
	}
	for val, want := range map[string]bool{"1": true, "true": true, "0": false, "": false} {
		if f, _, err := loadFrontend("", "DISAGG_DIAGNOSTICS", val); err != nil || f.Diagnostics() != want {
			t.Errorf("DISAGG_DIAGNOSTICS=%s: %v %v", val, f.Diagnostics(), err)
		}
	}
}

func TestFrontendWorkerArguments(t *testing.T) {
	f, _, err := loadFrontend(`
model: m
max_num_tokens: 512
internal_request_auth_key: 0123456789abcdef
context_servers: {max_batch_size: 4, kv_cache_config: {tokens_per_block: 32}, router: {type: conversation}}
generation_servers: {router: {type: round_robin}}
`)
	if err != nil {
		t.Fatal(err)
	}
	w := f.WorkerFile(f.Context)
	if len(w) != 4 || w["max_batch_size"] != 4 || w["max_num_tokens"] != 512 || w["internal_request_auth_key"] == nil {
		t.Errorf("%v", w)
	}
	if f.Model() != "m" || f.Context.RouterConfig().TokensPerBlock != 32 || f.Generation.RouterConfig().TokensPerBlock != 0 {
		t.Errorf("%+v", f)
	}
	if err := f.ValidateServe(); err == nil || !strings.Contains(err.Error(), "urls") {
		t.Errorf("serve needs urls: %v", err)
	}
	if c, err := f.Disagg("v"); err != nil || string(c.AuthKey) != "0123456789abcdef" {
		t.Errorf("%+v %v", c, err)
	}
}

func equalDisagg(a, b any) bool { return reflect.DeepEqual(a, b) }
