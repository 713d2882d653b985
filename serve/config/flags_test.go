package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestUnknownFlag(t *testing.T) {
	plain := errors.New("unknown flag")
	for _, tc := range []struct {
		flag, worker, frontend string // ends of the messages, "" = nothing is added
	}{
		{"max_batch_size", "the key max_batch_size in the file that -c names", ""},
		{"max-batch-size", "the key max_batch_size in the file that -c names", ""},
		{"tp_size", "the key tensor_parallel_size in the file that -c names", ""},
		{"server_role", "here it is --role", "here it is --role"},
		{"gpu-memory-utilization", "kv_cache_config.free_gpu_memory_fraction in the file that -c names", ""},
		{"tokens-per-block", "kv_cache_config.tokens_per_block in the file that -c names", ""}, // two routers have it
		{"t", "", "the key server_start_timeout_sec in the file that -c names"},
		{"schedule-style", "", "the key schedule_style in the file that -c names"},
		{"no-such-thing", "", ""},
	} {
		for what, got := range map[string]error{tc.worker: UnknownFlag[Worker](plain, tc.flag), tc.frontend: UnknownFlag[Frontend](plain, tc.flag)} {
			if !errors.Is(got, plain) || !strings.HasSuffix(got.Error(), what) || what == "" && got != plain { //nolint:errorlint // the very error
				t.Errorf("%s: %v, want %q", tc.flag, got, what)
			}
		}
	}
}

// What stands in for a flag of another engine exists.
func TestOtherFlagsAreKeys(t *testing.T) {
	known := map[string]bool{}
	for _, typ := range []reflect.Type{reflect.TypeFor[Worker](), reflect.TypeFor[Frontend]()} {
		for _, leaf := range leaves(typ, nil) {
			known[strings.Join(leaf.path, ".")] = true
		}
	}
	for flag, key := range otherFlags {
		if !strings.HasPrefix(key, "--") && !known[key] {
			t.Errorf("%s: there is no key %s", flag, key)
		}
	}
}
