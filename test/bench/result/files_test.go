package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func steps() (*Run, []Step) {
	run := NewRun("bench serve", []string{"bench", "serve", "--x=<y>"})
	run.Targets = []Target{{Name: "a<b>", Model: "m"}}
	run.Workload = Load{Name: "random", Model: "rate 1"}
	var out []Step
	for i := range 2 {
		bad := &Record{Phase: Measured, Outcome: Failed, Error: "status 500: <script>", Send: 0, End: msec, First: Unset}
		records := []*Record{rec(0, 0, 20, 3, 10, 10), rec(100, 50, int64(30*(i+1)), 4, 20, 40), bad}
		out = append(out, Step{Name: []string{"one", "two"}[i], Load: "rate", X: float64(i + 1), XName: "request_rate", Summary: Summarize(records, SummaryOptions{}), Records: records})
	}
	return run, out
}

func TestSaveWritesWhatScriptsOfTheFieldRead(t *testing.T) {
	run, st := steps()
	dir := filepath.Join(t.TempDir(), "run")
	if err := Folder(dir); err != nil {
		t.Fatal(err)
	}
	rec, err := NewRecorder(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range st[0].Records {
		if err := rec.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(rec.Close(), Save(dir, run, st[:1], true)); err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	read(t, filepath.Join(dir, SummaryFile), &m)
	for _, key := range []string{
		"duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
		"output_throughput", "total_token_throughput", "user_throughput", "mean_ttft_ms", "median_tpot_ms", "std_itl_ms", "p99_e2el_ms",
		"p99.9_ttft_ms", "input_lens", "output_lens", "ttfts", "itls", "e2els", "errors",
	} {
		if _, ok := m[key]; !ok {
			t.Errorf("summary.json lacks %s", key)
		}
	}
	if m["schema"] != SummarySchema || m["p99_ttft_ms"].(float64) != 1000*st[0].Summary.Dist["ttft"].P99 {
		t.Errorf("%v", m)
	}
	read(t, filepath.Join(dir, AIPerfFile), &m)
	if m["inter_token_latency"].(map[string]any)["avg"].(float64) != 1000*st[0].Summary.Dist["tpot"].Mean {
		t.Errorf("%v", m["inter_token_latency"])
	}
	f, err := os.Open(filepath.Join(dir, RecordsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := ReadRecords(f); err != nil || !reflect.DeepEqual(got, st[0].Records) {
		t.Errorf("records come back as %+v, %v", got, err)
	}
	if err := Folder(dir); !errors.Is(err, ErrExists) {
		t.Errorf("a folder with a run is taken again: %v", err)
	}
}

func read(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestReportStandsAlone(t *testing.T) {
	run, st := steps()
	page, err := Report(run, st)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script", "src=", "@import", "<link", "a<b>", "NaN", "<no value>"} {
		if bytes.Contains(page, []byte(bad)) {
			t.Errorf("the page has %q", bad)
		}
	}
	text := strings.ReplaceAll(string(page), `xmlns="http://www.w3.org/2000/svg"`, "")
	if strings.Contains(text, "http://") || strings.Contains(text, "https://") {
		t.Error("the page points elsewhere")
	}
	if n := strings.Count(text, "<svg"); n != 11 {
		t.Errorf("%d charts", n)
	}
	if again, _ := Report(run, st); !bytes.Equal(page, again) {
		t.Error("two reports of one run differ")
	}
}

func TestPrint(t *testing.T) {
	_, st := steps()
	var b bytes.Buffer
	if err := Print(&b, &st[0], false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 completed, 1 failed (errors 33.3 %", "TTFT (ms)", "TTFT from schedule", "1 x status 500", "flags: errors"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if text := Chart(st).Text(80, 10, false); !strings.Contains(text, "TTFT p99") {
		t.Error(text)
	}
	if text := Chart(st[:1]).Text(80, 10, false); !strings.Contains(text, "end to end") {
		t.Error(text)
	}
}

// A folder is complete if run.json is there, and free again if nothing was measured.
func TestBrokenFolders(t *testing.T) {
	run, st := steps()
	dir := t.TempDir()
	r, err := NewRecorder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Discard(), Folder(dir), (*Recorder)(nil).Discard()); err != nil {
		t.Errorf("a run without records keeps its folder: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, SummaryFile), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Save(dir, run, st, false); err == nil {
		t.Error("a summary that cannot be written is none")
	}
	if _, err := os.Stat(filepath.Join(dir, RunFile)); err == nil {
		t.Error("run.json says that all is there")
	}
}

func FuzzReadRecords(f *testing.F) {
	f.Add([]byte("{\"request_id\":\"a\"}\n\n{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		records, err := ReadRecords(bytes.NewReader(data))
		if err == nil {
			Summarize(records, SummaryOptions{OpenLoop: true})
		}
	})
}
