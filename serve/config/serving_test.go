package config

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// examples returns the YAML blocks of a page.
func examples(t *testing.T, page string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split(string(text), "```yaml\n") {
		if i > 0 {
			block, _, _ := strings.Cut(part, "```")
			blocks = append(blocks, block)
		}
	}
	return blocks
}

// TestPageOfServingShowsEveryKey loads the examples of docs/serving.md and
// wants each key of the frontend in one of them.
func TestPageOfServingShowsEveryKey(t *testing.T) {
	shown := map[string]bool{}
	for _, block := range examples(t, "serving.md") {
		if _, _, err := loadFrontend(block, "TANDEM_KEY", "0123456789abcdef"); err != nil && !strings.Contains(block, "metadata_server_config_file") {
			t.Errorf("%v in\n%s", err, block)
		}
		var tree map[string]any
		if err := yaml.Unmarshal([]byte(block), &tree); err != nil {
			t.Fatal(err)
		}
		for _, leaf := range leaves(reflect.TypeFor[Frontend](), nil) {
			var at any = tree
			for _, key := range leaf.path {
				node, _ := at.(map[string]any)
				at = node[key]
			}
			if at != nil {
				shown[keyName(leaf)] = true
			}
		}
	}
	for _, leaf := range leaves(reflect.TypeFor[Frontend](), nil) {
		if name := keyName(leaf); !shown[name] {
			t.Errorf("docs/serving.md has no example with the key %s: add one where its purpose is", name)
			shown[name] = true
		}
	}
}

// keyName names a key; both sections have the same ones.
func keyName(leaf leafKey) string {
	return strings.Replace(strings.Join(leaf.path, "."), "generation_servers.", "context_servers.", 1)
}
