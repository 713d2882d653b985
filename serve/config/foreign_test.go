package config

import (
	"strings"
	"testing"
)

// TestForeignClusterFilesLoad loads files that were written for TensorRT-LLM,
// with every key that its orchestrator knows.
func TestForeignClusterFilesLoad(t *testing.T) {
	for _, name := range []string{"trtllm_static.yaml", "trtllm_cluster.yaml"} {
		f, warnings, err := LoadFrontend(Source{File: "testdata/" + name, LookupEnv: env()})
		if err == nil {
			err = f.ValidateServe()
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %d warnings: %s", name, len(warnings), strings.Join(warnings, "; "))
	}
	f, warnings, err := LoadFrontend(Source{File: "testdata/trtllm_static.yaml", LookupEnv: env()})
	if err != nil {
		t.Fatal(err)
	}
	if f.NodeID == nil || *f.NodeID != 17 || f.MaxRetries != 2 || f.Context.Router.MatchThreshold == nil || *f.Context.Router.MatchThreshold != 0.8 || len(f.Context.URLs) != 2 {
		t.Errorf("the values did not arrive: %+v", f)
	}
	if text := strings.Join(warnings, "\n"); !strings.Contains(text, "num_workers") || !strings.Contains(text, "kv_transfer_timeout_ms") {
		t.Errorf("warnings %q do not name what is ignored", warnings)
	}
}
