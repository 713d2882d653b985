package config

import (
	"strings"
	"testing"

	"tandem/engine/executor"
)

// TestBounds: a number that is not finite or a time that overflows is refused by its key, wherever it stands.
func TestBounds(t *testing.T) {
	worker := func(text string) error {
		_, _, err := LoadWorker(executor.Ctx, Source{Data: []byte(text)})
		return err
	}
	frontend := func(text string) error {
		_, _, err := LoadFrontend(Source{Data: []byte(text)})
		return err
	}
	for _, c := range []struct {
		load      func(string) error
		text, key string
	}{
		{worker, "stall_threshold_sec: .inf", "stall_threshold_sec"},
		{worker, "shutdown_grace_sec: .nan", "shutdown_grace_sec"},
		{worker, "cache_transceiver_config: {max_leased_fraction: .nan}", "cache_transceiver_config.max_leased_fraction"},
		{worker, "cache_transceiver_config: {lease_ms: 99999999999999999}", "cache_transceiver_config.lease_ms"},
		{worker, "scheduler_config: {queue_timeout_ms: 9223372036854775807}", "scheduler_config.queue_timeout_ms"},
		{frontend, "request_timeout_sec: 1e300", "request_timeout_sec"},
		{frontend, "connect_timeout_ms: .inf", "connect_timeout_ms"},
		{frontend, "admission_timeout_sec: .nan", "admission_timeout_sec"},
		{frontend, "context_servers: {router: {match_threshold: .nan}}", "context_servers.router.match_threshold"},
	} {
		if err := c.load(c.text); err == nil || !strings.Contains(err.Error(), c.key+": ") {
			t.Errorf("%s: got %v", c.text, err)
		}
	}
	if err := worker("shutdown_grace_sec: 86400\ncache_transceiver_config: {lease_ms: 86400000}"); err != nil {
		t.Errorf("a day is allowed: %v", err)
	}
}
