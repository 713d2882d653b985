package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type inner struct {
	Rate  float64 `mapstructure:"rate"`
	Limit *int    `mapstructure:"limit"`
}

type named struct {
	Name string `mapstructure:"name"`
}

type sample struct {
	Port  int      `mapstructure:"port"`
	On    bool     `mapstructure:"on"`
	Word  string   `mapstructure:"word"`
	URLs  []string `mapstructure:"urls"`
	Inner inner    `mapstructure:"inner_config"`
	Lists []named  `mapstructure:"lists"`
}

func (s sample) Validate() error {
	if s.Port < 0 {
		return errors.New("port: must not be negative")
	}
	return nil
}

func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		i := slices.Index(pairs, name)
		if i < 0 || i%2 == 1 {
			return "", false
		}
		return pairs[i+1], true
	}
}

func TestLoadOrder(t *testing.T) {
	def := sample{Port: 1, Word: "default", URLs: []string{"a", "b", "c"}}
	src := Source{Data: []byte("port: 2\nword: file\nurls: [x]\ninner_config: {rate: 2, limit: 7}\n"), LookupEnv: env()}
	got, _, err := Load(def, src)
	if err != nil {
		t.Fatal(err)
	}
	if got.Port != 2 || got.Word != "file" || got.Inner.Rate != 2 || *got.Inner.Limit != 7 {
		t.Errorf("file over default: %+v", got)
	}
	if !slices.Equal(got.URLs, []string{"x"}) || !slices.Equal(def.URLs, []string{"a", "b", "c"}) {
		t.Errorf("a list replaces its default: got %v, default now %v", got.URLs, def.URLs)
	}
	src.LookupEnv = env("TANDEM_PORT", "3", "TANDEM_WORD", "true", "TANDEM_INNER_CONFIG__RATE", "0.5", "TANDEM_URLS", "h:1, h:2")
	got, _, err = Load(def, src)
	if err != nil {
		t.Fatal(err)
	}
	if got.Port != 3 || got.Word != "true" || got.Inner.Rate != 0.5 || !slices.Equal(got.URLs, []string{"h:1", "h:2"}) {
		t.Errorf("environment over file: %+v", got)
	}
	src.Flags = map[string]any{"port": 4, "inner_config.rate": 0.25}
	got, _, err = Load(def, src)
	if err != nil {
		t.Fatal(err)
	}
	if got.Port != 4 || got.Inner.Rate != 0.25 {
		t.Errorf("flag over environment: %+v", got)
	}
}

func TestLoadErrors(t *testing.T) {
	cases := []struct{ name, yaml, want string }{
		{"unknown key", "prot: 1", `unknown key "prot"; the nearest known key is "port"`},
		{"unknown nested", "inner_config: {rtae: 1}", `unknown key "inner_config.rtae"; the nearest known key is "rate"`},
		{"unknown in list", "lists: [{name: a}, {nam: b}]", `unknown key "lists[1].nam"; the nearest known key is "name"`},
		{"upper case is unknown", "Port: 1", `unknown key "Port"`},
		{"quoted boolean", `on: "true"`, "'on'"},
		{"yes is no boolean", "on: yes", "true or false"},
		{"string for int", `port: "1"`, "'port'"},
		{"fraction for int", "port: 1.5", "whole number"},
		{"scalar for mapping", "inner_config: 3", "inner_config: expected a mapping"},
		{"list at the top", "- a", "not a YAML mapping"},
		{"broken", "a: [", "not a YAML mapping"},
		{"two documents", "port: 1\n---\nport: 2", "more than one"},
		{"twice the same key", "port: 1\nport: 2", "port"},
		{"validation", "port: -1", "port: must not be negative"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := Load(sample{}, Source{Data: []byte(c.yaml), LookupEnv: env()})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, c.want)
			}
		})
	}
}

func TestLoadForeignAndNull(t *testing.T) {
	got, warnings, err := Load(sample{Port: 9}, Source{
		Data:      []byte("port:\ninner_config: {rate: 1, gpu_thing: 3}\n"),
		LookupEnv: env(), Foreign: map[string]string{"inner_config.gpu_thing": "no GPU here"},
	})
	if err != nil || got.Port != 9 || got.Inner.Rate != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if len(warnings) != 1 || warnings[0] != "inner_config.gpu_thing is ignored: no GPU here" {
		t.Errorf("warnings %q", warnings)
	}
}

func TestLoadFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte("prot: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(sample{}, Source{File: path, LookupEnv: env()}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error should name the file: %v", err)
	}
	if _, _, err := Load(sample{}, Source{File: path + ".absent"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _, err := Load(sample{Port: 5}, Source{File: path, LookupEnv: env()}); err != nil || got.Port != 5 {
		t.Errorf("empty file means defaults: %+v, %v", got, err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte("port: 1\ninner_config: {limit: 3}"))
	f.Add([]byte("lists: [{name: a}, 3, [x]]"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _, _ = Load(sample{}, Source{Data: data, LookupEnv: env()})
	})
}

func TestTypeErrors(t *testing.T) {
	for _, c := range []struct{ yaml, name, val, want string }{
		{"max_batch_size: many", "", "", "'max_batch_size' expected a whole number, got many"},
		{"stall_threshold_sec: long", "", "", "'stall_threshold_sec' expected a number, got long"},
		{"served_model_name: 5", "", "", "'served_model_name' expected text, got a number; put it in quotes"},
		{"metrics_compat: vllm", "", "", "'metrics_compat' expected a list, got text"},
		{"metrics_compat: {a: 1}", "", "", "'metrics_compat' expected a list, got keys with values"},
		{"", "TANDEM_MAX_BATCH_SIZE", "abc", "environment TANDEM_MAX_BATCH_SIZE: expected a whole number, got abc"},
		{"", "TANDEM_TRUST_INTERNAL_NETWORK", "1", "environment TANDEM_TRUST_INTERNAL_NETWORK: expected true or false"},
		{"", "TANDEM_THREADS", "", "environment TANDEM_THREADS: is empty"},
		{"", "TANDEM_SERVED_MODEL_NAME", "5", ""},
		{"stall_threshold_sec: 5", "", "", ""},
	} {
		_, _, err := Load(DefaultWorker(), Source{Data: []byte(c.yaml), LookupEnv: env(c.name, c.val)})
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q %s=%q: got %v, want %q", c.yaml, c.name, c.val, err, c.want)
		}
	}
}

// A secret that is written where or as it cannot be is not repeated to the terminal or a log.
func TestErrorsTellNoSecrets(t *testing.T) {
	const secret = "86420135798642013"
	for _, text := range []string{
		"internal_request_auth_key: " + secret,
		"internal_request_auth_key: [" + secret + "]",
		"api_keys: [{name: a, key: " + secret + "}]",
		"api_keys: [{name: a, key: {x: " + secret + "}}]",
		"disagg_cluster: {cluster_uri: 'etcd://localhost:1', username: a, password: " + secret + "}",
		secret, // the file of a key in place of the configuration
		"'" + secret + "'",
		"c2Vj" + secret + "==",
		"- " + secret,
	} {
		_, _, err := LoadFrontend(Source{Data: []byte(text), LookupEnv: env()})
		if err == nil {
			t.Errorf("%s: loads", text)
		} else if strings.Contains(err.Error(), secret[:5]) || strings.Contains(err.Error(), "c2Vj") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
