package config

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"tandem/engine/executor"
	"tandem/serve/router"
)

// page returns the rows of the tables below a heading of docs/configuration.md, as cells without their spaces.
func page(t *testing.T, heading string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(text), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("docs/configuration.md has no heading %q", heading)
	}
	part, _, _ = strings.Cut(part, "\n#")
	for line := range strings.Lines(part) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

func code(s string) string { return "`" + s + "`" }

// defaultsOf maps each dotted key of a tree to its default as the page shows it; "" means that it is derived, and the
// page says how.
func defaultsOf(v reflect.Value, prefix string, out map[string]string) {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	for i := range v.NumField() {
		name, opts, _ := strings.Cut(v.Type().Field(i).Tag.Get("mapstructure"), ",")
		f := v.Field(i)
		switch {
		case opts == "squash" && v.Type().Field(i).Anonymous:
			defaultsOf(f, prefix, out)
		case opts != "" || name == "": // remain, and the keys that are refused
		case f.Kind() == reflect.Pointer && f.IsNil():
			out[prefix+name] = ""
		case f.Kind() == reflect.Struct || f.Kind() == reflect.Pointer:
			defaultsOf(f, prefix+name+".", out)
		case f.Kind() == reflect.Slice:
			out[prefix+name] = code("[]")
		case f.Kind() == reflect.String && f.String() == "":
			out[prefix+name] = code(`""`)
		default:
			out[prefix+name] = code(fmt.Sprint(f.Interface()))
		}
	}
}

func compareKeys(t *testing.T, rows [][]string, want map[string]string) {
	t.Helper()
	for _, row := range rows {
		key := strings.Trim(row[0], "`")
		def, ok := want[key]
		if !ok {
			t.Errorf("docs/configuration.md has the key %s, or has it twice; the code does not", key)
			continue
		}
		delete(want, key)
		if def != "" && row[1] != def {
			t.Errorf("%s: the page says the default is %s, the code says %s", key, row[1], def)
		}
		env := code(envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "__")))
		if len(row) != 4 || row[2] != env || row[3] == "" {
			t.Errorf("%s: want key, default, %s and a meaning, got %q", key, env, row)
		}
	}
	for key := range want {
		t.Errorf("docs/configuration.md lacks the key %s", key)
	}
}

func TestPageHasTheWorkerKeys(t *testing.T) {
	def, tr := DefaultWorker(), DefaultTransceiver()
	def.Transceiver = &tr
	want := map[string]string{}
	defaultsOf(reflect.ValueOf(def), "", want)
	compareKeys(t, page(t, "## Worker keys"), want)
}

func TestPageHasTheFrontendKeys(t *testing.T) {
	want := map[string]string{}
	defaultsOf(reflect.ValueOf(DefaultFrontend()), "", want)
	for key := range want {
		if strings.HasPrefix(key, "generation_servers.") {
			delete(want, key) // the page says that they are those of context_servers
		}
	}
	for key, val := range map[string]any{ // zero values that stand for others
		"type": router.KindRoundRobin, "match_threshold": router.DefaultMatchThreshold, "tokens_per_block": router.DefaultTokensPerBlock,
		"max_sessions": router.DefaultMaxSessions, "match_basis": router.BasisRequest, "max_batch_size": router.DefaultMaxBatchSize,
	} {
		want["context_servers.router."+key] = code(fmt.Sprint(val))
	}
	compareKeys(t, page(t, "## Frontend keys"), want)
}

func TestPageHasTheForeignKeys(t *testing.T) {
	for heading, keys := range map[string]map[string]string{
		"### Ignored in the worker file": foreignWorker, "### Ignored in the cluster file": foreignFrontend,
	} {
		seen := map[string]bool{}
		for _, row := range page(t, heading) {
			key := strings.Trim(row[0], "`")
			if why, ok := keys[key]; !ok || row[1] != why {
				t.Errorf("%s: the page says %q, the code %q", key, row[1], why)
			}
			seen[key] = true
		}
		for key := range keys {
			if !seen[key] {
				t.Errorf("%q in docs/configuration.md lacks %s", heading, key)
			}
		}
	}
}

// TestPageOfOperationsLoads loads the example files of docs/operations.md.
func TestPageOfOperationsLoads(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	loaded := 0
	for i, part := range strings.Split(string(text), "```yaml\n") {
		if i == 0 {
			continue
		}
		yaml, _, _ := strings.Cut(part, "```")
		var warnings []string
		if strings.HasPrefix(yaml, "# worker.yaml") || strings.HasPrefix(yaml, "# ranks.yaml") {
			_, warnings, err = LoadWorker(executor.Ctx, Source{Data: []byte(yaml), LookupEnv: env()})
		} else {
			var f Frontend
			if f, warnings, err = loadFrontend(yaml); err == nil && !strings.HasPrefix(yaml, "# part") {
				err = f.ValidateServe()
			}
		}
		if err != nil || len(warnings) > 0 {
			t.Errorf("%v %q in\n%s", err, warnings, yaml)
		}
		loaded++
	}
	if loaded < 5 {
		t.Errorf("%d examples, want 5 or more", loaded)
	}
}
