package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tandem/serve/disagg"
)

func TestAPIKeysAreRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("key-of-carol-0123456789\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BOBS_KEY", "key-of-bob-0123456789")
	f, _, err := LoadFrontend(Source{Data: []byte(`
api_keys:
- {name: alice, key: key-of-alice-0123456789}
- {name: bob, key: "env:BOBS_KEY", weight: 2}
- {name: carol, key: "file:` + file + `"}
max_inflight_requests: 8
max_queued_requests: 16
queue_timeout_sec: 2.5
`)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Disagg("1")
	if err != nil {
		t.Fatal(err)
	}
	want := []disagg.APIKey{{Name: "alice", Key: "key-of-alice-0123456789", Weight: 1}, {Name: "bob", Key: "key-of-bob-0123456789", Weight: 2}, {Name: "carol", Key: "key-of-carol-0123456789", Weight: 1}}
	for i, k := range c.APIKeys {
		if k != want[i] {
			t.Errorf("key %d: %+v", i, k)
		}
	}
	if len(c.APIKeys) != 3 || c.MaxQueued != 16 || c.QueueTimeout != 2500*time.Millisecond {
		t.Errorf("%+v", c)
	}
}

func TestBadAPIKeys(t *testing.T) {
	for text, want := range map[string]string{
		`api_keys: [{name: a}]`:                                   "api_keys[0].key: is missing",
		`api_keys: [{key: 0123456789abcdef}]`:                     "api_keys[0].name: is missing",
		`api_keys: [{name: a, key: short}]`:                       "api_keys[0].key: is shorter than 16 bytes",
		`api_keys: [{name: "a b", key: 0123456789abcdef}]`:        "api_keys[0].name",
		`api_keys: [{nam: a, key: 0123456789abcdef}]`:             `nearest known key is "name"`,
		`api_keys: [{name: a, key: "env:NOT_SET_ANYWHERE"}]`:      "NOT_SET_ANYWHERE is not set",
		`api_keys: [{name: a, key: 0123456789abcdef, weight: 0}]`: "weight",
		`max_queued_requests: 3`:                                  "max_inflight_requests",
		`{max_inflight_requests: 2, max_queued_requests: -1}`:     "max_queued_requests",
		`queue_timeout_sec: 0`:                                    "queue_timeout_sec",
	} {
		f, _, err := LoadFrontend(Source{Data: []byte(text)})
		if err == nil {
			_, err = f.Disagg("1")
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "0123456789abcdef") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
