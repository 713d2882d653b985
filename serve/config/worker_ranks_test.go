package config

import (
	"strings"
	"testing"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
)

func TestAttentionDP(t *testing.T) {
	w, warnings, err := LoadWorker(executor.Mixed, Source{
		Data: []byte(`
tensor_parallel_size: 4
moe_expert_parallel_size: 4
enable_attention_dp: true
hang_timeout_sec: 2.5
attention_dp_config:
  enable_balance: true
  kv_cache_routing_conversation_affinity: true
  kv_cache_routing_new_conv_placement: least_work
  dense_mlp: split
`),
		LookupEnv: env("TANDEM_ATTENTION_DP_CONFIG__TIMEOUT_ITERS", "7", "TANDEM_ATTENTION_DP_CONFIG__COMPAT", "false"),
	})
	if err != nil || len(warnings) != 0 {
		t.Fatal(err, warnings)
	}
	want := adprouter.DefaultSettings()
	want.EnableBalance, want.Conversations, want.Placement, want.TimeoutIters, want.Compat = true, true, "least_work", 7, false
	if w.AttentionDP.Settings != want || w.AttentionDP.DenseMLP != DenseSplit || !w.ADP() || w.HangTimeout() != 2500*time.Millisecond {
		t.Errorf("%+v", w)
	}
	if w, _, err = loadWorker(t, executor.Ctx, ""); err != nil || w.ADP() || w.HangTimeout() != 30*time.Second || w.AttentionDP != defaultAttentionDP() {
		t.Errorf("defaults: %v %+v", err, w)
	}
	if h, err := w.HTTP(true); err != nil || h.ExposeRouting || h.Stall != 10*time.Second {
		t.Errorf("%v %+v", err, h)
	}
}

func TestAttentionDPWithoutEffect(t *testing.T) {
	const off = "attention_dp_config has no effect without enable_attention_dp"
	const inTurn = "disable_overlap_scheduler: false has no effect with tensor_parallel_size above 1: steps of several ranks run in turn"
	for _, tc := range []struct{ yaml, want string }{
		{"attention_dp_config: {}", off},
		{"tensor_parallel_size: 2\nattention_dp_config: {timeout_iters: 50}", off},
		{"{tensor_parallel_size: 2, enable_attention_dp: true, attention_dp_config: {enable_balance: true, timeout_iters: 9}}", ""},
		{"kv_cache_config: {enable_block_reuse: false, host_cache_size: 9999999}", "kv_cache_config: host_cache_size and disk_cache_dir have no effect without enable_block_reuse"},
		{"{tensor_parallel_size: 2, enable_attention_dp: true, attention_dp_config: {timeout_iters: 9}}", "attention_dp_config.timeout_iters has no effect without attention_dp_config.enable_balance"},
		{
			"{tensor_parallel_size: 2, enable_attention_dp: true, attention_dp_config: {kv_cache_routing_new_conv_placement: least_work}}",
			"kv_cache_routing_new_conv_placement has no effect without attention_dp_config.kv_cache_routing_conversation_affinity",
		},
		{"enable_attention_dp: true", "enable_attention_dp has no effect with tensor_parallel_size 1"},
		{"tensor_parallel_size: 2", ""},
		{"{tensor_parallel_size: 2, disable_overlap_scheduler: false}", inTurn},
		{"{tensor_parallel_size: 2, disable_overlap_scheduler: true}", ""},
		{"disable_overlap_scheduler: false", ""},
	} {
		_, warnings, err := loadWorker(t, executor.Mixed, tc.yaml)
		got := strings.Join(warnings, "\n")
		if err != nil || tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %v %q, want %q", tc.yaml, err, got, tc.want)
		}
	}
	_, warnings, err := LoadWorker(executor.Mixed, Source{LookupEnv: env("TANDEM_ATTENTION_DP_CONFIG__TIMEOUT_ITERS", "9")})
	if err != nil || len(warnings) != 1 || warnings[0] != off {
		t.Errorf("by environment: %v %q", err, warnings)
	}
}

func TestRankGroup(t *testing.T) {
	const four = "tensor_parallel_size: 4\n"
	const adp = four + "enable_attention_dp: true\n"
	for _, tc := range []struct {
		role              executor.Role
		yaml, addr, ranks string
		want              RankGroup
		says              string
	}{
		{executor.Ctx, adp, "h:5", "0-1", RankGroup{"h:5", 0, 1}, ""},
		{executor.Gen, adp, "h:5", "2 - 3", RankGroup{"h:5", 2, 3}, ""},
		{executor.Mixed, four, ":5", "0", RankGroup{":5", 0, 0}, ""},
		{executor.Mixed, four, "[::1]:5", "3", RankGroup{"[::1]:5", 3, 3}, ""},
		{executor.Mixed, four, "h:5", "", RankGroup{}, "--rank-group needs --ranks A-B"},
		{executor.Mixed, four, "", "0-1", RankGroup{}, "--ranks needs --rank-group HOST:PORT"},
		{executor.Mixed, four, "h", "0-1", RankGroup{}, `--rank-group "h" must be HOST:PORT`},
		{executor.Mixed, four, "h:0", "0-1", RankGroup{}, `--rank-group "h:0" must be HOST:PORT`},
		{executor.Mixed, four, "h:70000", "0-1", RankGroup{}, "must be HOST:PORT"},
		{executor.Mixed, four, ":5", "2-3", RankGroup{}, `--rank-group ":5" names no host`},
		{executor.Mixed, four, "h:5", "0-3", RankGroup{}, "are all ranks"},
		{executor.Mixed, four, "h:5", "2-4", RankGroup{}, `--ranks "2-4" must be A-B, or one rank, from 0 to 3 (tensor_parallel_size is 4)`},
		{executor.Mixed, four, "h:5", "3-2", RankGroup{}, "must be A-B"},
		{executor.Mixed, four, "h:5", "-1", RankGroup{}, "must be A-B"},
		{executor.Mixed, four, "h:5", "+1", RankGroup{}, "must be A-B"},
		{executor.Mixed, four, "h:5", "1-", RankGroup{}, "must be A-B"},
		{executor.Mixed, "", "h:5", "0", RankGroup{}, "tensor_parallel_size above 1"},
		{executor.Ctx, four, "h:5", "0-1", RankGroup{}, "only with enable_attention_dp"},
		{executor.Mixed, four + "cache_transceiver_config: {}", "h:5", "0-1", RankGroup{}, "only with enable_attention_dp"},
	} {
		w, _, err := loadWorker(t, tc.role, tc.yaml)
		if err != nil {
			t.Fatal(err)
		}
		g, err := w.Group(tc.addr, tc.ranks)
		switch {
		case tc.says != "":
			if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s %q %q: got %v, want one line with %q", tc.role, tc.addr, tc.ranks, err, tc.says)
			}
		case err != nil || *g != tc.want || g.Leads() != (tc.want.First == 0):
			t.Errorf("%q %q: %+v %v", tc.addr, tc.ranks, g, err)
		}
	}
	if g, err := DefaultWorker().Group("", ""); g != nil || err != nil || !g.Leads() {
		t.Errorf("no flags: %v %v", g, err)
	}
	for want, g := range map[string]RankGroup{"2": {First: 2, Last: 2}, "0-1": {First: 0, Last: 1}} {
		if g.String() != want {
			t.Errorf("%q, want %q", g.String(), want)
		}
	}
}
