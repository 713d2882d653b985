//go:build e2e

package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestStartErrors starts programs in ways that must fail: with a code other
// than 0 and a last line that names what to change.
func TestStartErrors(t *testing.T) {
	needModel(t)
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	_, port, _ := net.SplitHostPort(busy.Addr().String())
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	noModel := file("notes.txt", "This is not a model.\n")
	lying := file("lying.gguf", "GGUF\x03\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x7f")
	missing := filepath.Join(dir, "no-such-file.gguf")
	urls := "context_servers: {urls: [\"127.0.0.1:1\"]}\ngeneration_servers: {urls: [\"127.0.0.1:2\"]}\n"
	engine := func(args ...string) []string { return append([]string{engineBin, "serve", "--port", "0"}, args...) }
	files := 0
	frontend := func(text string, args ...string) []string {
		files++
		name := "f" + strconv.Itoa(files) + ".yaml"
		return append([]string{frontendBin, "serve", "-c", file(name, text)}, args...)
	}
	up := func(args ...string) []string { return append([]string{frontendBin, "up", "--port", "0"}, args...) }
	for _, c := range []struct {
		name string
		args []string
		says []string
	}{
		{"unknown key", engine("-c", file("key.yaml", "kv_cache_confg: {}\n")), []string{"kv_cache_confg", "kv_cache_config"}},
		{"unknown nested key", engine("-c", file("nested.yaml", "kv_cache_config: {max_token: 1}\n")), []string{"max_token", "max_tokens"}},
		{"wrong type", engine("-c", file("type.yaml", "max_batch_size: many\n")), []string{"max_batch_size"}},
		{"text as boolean", engine("-c", file("bool.yaml", "enable_chunked_prefill: \"true\"\n")), []string{"enable_chunked_prefill"}},
		{"value out of range", engine("-c", file("range.yaml", "kv_cache_config: {tokens_per_block: 12}\n")), []string{"tokens_per_block", "12"}},
		{"no YAML", engine("-c", file("broken.yaml", "a: [1\n")), []string{"broken.yaml"}},
		{"missing config", engine("-c", filepath.Join(dir, "none.yaml")), []string{"none.yaml"}},
		{"missing model", engine(missing), []string{"no-such-file.gguf"}},
		{"unknown model", engine("no-such-alias"), []string{"no-such-alias", modelName}},
		{"wrong file", engine(noModel), []string{"notes.txt", "not a model"}},
		{"lying file", engine(lying), []string{"lying.gguf"}},
		{"empty folder", engine(t.TempDir()), []string{"config.json"}},
		{"bad role", engine("--role", "both"), []string{"--role", "both", "mixed"}},
		{"bad flag", engine("--no-such-flag"), []string{"--no-such-flag"}},
		{"bad log level", engine("--log-level", "loud"), []string{"--log-level", "loud"}},
		{"busy port", []string{engineBin, "serve", "--port", port}, []string{port, "--port"}},
		{"bad port", []string{engineBin, "serve", "--port", "99999"}, []string{"99999"}},
		{"busy admin port", engine("--admin-addr", busy.Addr().String()), []string{"admin"}},

		{"frontend: unknown key", frontend(urls+"schedule_styles: x\n", "--port", "0"), []string{"schedule_styles", "schedule_style"}},
		{"frontend: unknown router", frontend("context_servers: {urls: [\"127.0.0.1:1\"], router: {type: foo}}\ngeneration_servers: {urls: [\"127.0.0.1:2\"]}\n"), []string{"foo", "round_robin"}},
		{"frontend: number of urls", frontend("context_servers: {urls: [\"127.0.0.1:1\"], num_instances: 2}\ngeneration_servers: {urls: [\"127.0.0.1:2\"]}\n"), []string{"num_instances", "2", "1"}},
		{"frontend: no workers", frontend("port: 8123\n"), []string{"context_servers"}},
		{"frontend: node id", frontend(urls + "node_id: 256\n"), []string{"node_id", "256"}},
		{"frontend: text as boolean", frontend(urls + "allow_request_chat_template: \"yes\"\n"), []string{"allow_request_chat_template"}},
		{"frontend: busy port", frontend(urls + "hostname: 127.0.0.1\nport: " + port + "\n"), []string{port}},
		{"frontend: no config", []string{frontendBin, "serve"}, []string{"context_servers"}},
		{"frontend: workers stay away", frontend(urls+"server_start_timeout_sec: 1\n", "--port", "0"), []string{"server_start_timeout_sec"}},

		{"up: missing model", up("--model", missing), []string{"no-such-file.gguf"}},
		{"up: wrong file", up("--model", noModel), []string{"notes.txt"}},
		{"up: no gen", up("--gen", "0"), []string{"--gen"}},
		{"up: busy port", []string{frontendBin, "up", "--port", port}, []string{port, "--port"}},
		{"up: urls", append(up(), "-c", file("urls.yaml", urls)), []string{"urls"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, ready := launch(t, c.name, c.args[0], c.args[1:]...)
			if line, ok := <-ready; ok {
				t.Fatalf("it started: %s", line)
			}
			if code := p.wait(t, stopLimit); code <= 0 {
				t.Errorf("exit code %d", code)
			}
			lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
			last := lines[len(lines)-1]
			for _, part := range c.says {
				if !strings.Contains(last, part) {
					t.Errorf("the last line does not say %q: %s", part, last)
				}
			}
			for _, line := range lines[:len(lines)-1] {
				if !strings.HasPrefix(line, "time=") {
					t.Errorf("more than one line: %s", line)
				}
			}
			if strings.Contains(p.log.String(), "panic") || strings.Contains(p.log.String(), "goroutine ") {
				t.Errorf("it crashed:\n%s", p.log.String())
			}
		})
	}
}
