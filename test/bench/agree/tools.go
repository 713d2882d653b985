package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"tandem/test/bench/page"
)

// values are means by our keys, in milliseconds.
type values map[string]float64

// keys are what is compared, with what the others call it.
var keys = []struct{ key, text string }{
	{"ttft", "ttft: TTFT of both"},
	{"tpot", "tpot: inter token latency of both"},
	{"tpot_incl", "tpot_incl: guidellm's time per output token"},
	{"ttst", "ttst: aiperf's time to second token"},
	{"e2el", "e2el: request latency of both"},
}

// tool is a load client. run measures url once, with dir for its files.
type tool struct {
	name string
	run  func(o *options, url, dir string) (values, error)
	got  []values
}

// agree lets all tools take turns and prints their medians; progress goes to log.
func agree(o *options, out, log io.Writer) error {
	url, stop, err := startStub(o)
	if err != nil {
		return err
	}
	defer stop()
	tools := []*tool{{name: "bench serve", run: ours}}
	var missing []string
	for _, t := range []struct {
		path string
		tool *tool
	}{{o.aiperf, &tool{name: "aiperf", run: aiperf}}, {o.guidellm, &tool{name: "guidellm", run: guidellm}}} {
		if _, err := os.Stat(t.path); err != nil {
			_, _ = fmt.Fprintf(log, "left out: %s: %v\n", t.tool.name, err)
			missing = append(missing, t.tool.name)
			continue
		}
		t.tool.name = strings.TrimSpace(t.tool.name + " " + page.Version(t.path))
		tools = append(tools, t.tool)
	}
	for round := range o.rounds {
		for i := range tools {
			t := tools[(i+round)%len(tools)]
			_, _ = fmt.Fprintf(log, "round %d of %d: %s\n", round+1, o.rounds, t.name)
			if err := t.turn(o, url); err != nil {
				_, _ = fmt.Fprintf(log, "left out of round %d: %s: %v\n", round+1, t.name, err)
			}
		}
	}
	return report(o, tools, missing, out)
}

func (t *tool) turn(o *options, url string) error {
	dir, err := os.MkdirTemp("", "bench-agree-")
	if err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // scratch
	v, err := t.run(o, url, dir)
	if err == nil {
		t.got = append(t.got, v)
	}
	return err
}

// startStub runs the server in a process of its own.
func startStub(o *options) (url string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, fmt.Errorf("stub: %w", err)
	}
	cmd := exec.Command(self, "-stub", "-ttft", o.load.ttft.String(), "-itl", o.load.itl.String())
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, fmt.Errorf("stub: %w", err)
	}
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", nil, fmt.Errorf("stub: %w", err)
	}
	stop = func() {
		_ = in.Close()
		_ = cmd.Wait() // it ends with its input
	}
	line, err := bufio.NewReader(pipe).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("stub: %w", err)
	}
	return strings.TrimSpace(line), stop, nil
}

// call runs a program; its last words are the error.
func call(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, text[max(0, len(text)-600):])
	}
	return nil
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return nil
}

func ours(o *options, url, dir string) (values, error) {
	l := &o.load
	dir = filepath.Join(dir, "out")
	err := call(o.bench, "serve", url, "-q", "-n", strconv.Itoa(l.requests), "--concurrency", strconv.Itoa(l.concurrency),
		"--isl", strconv.Itoa(l.in), "--osl", strconv.Itoa(l.out), "-o", dir)
	var doc struct {
		Summary struct {
			Dist map[string]struct{ Mean float64 } `json:"distributions"`
		} `json:"summary"`
	}
	if err = errors.Join(err, readJSON(filepath.Join(dir, "summary.json"), &doc)); err != nil {
		return nil, err
	}
	v := values{}
	for _, k := range keys {
		v[k.key] = 1000 * doc.Summary.Dist[k.key].Mean
	}
	return v, nil
}

func aiperf(o *options, url, dir string) (values, error) {
	l := &o.load
	err := call(o.aiperf, "profile", "-m", "stub", "--url", url, "--endpoint-type", "chat", "--streaming", "--tokenizer", o.tokenizer,
		"--concurrency", strconv.Itoa(l.concurrency), "--request-count", strconv.Itoa(l.requests), "--warmup-request-count", "2",
		"--isl", strconv.Itoa(l.in), "--osl", strconv.Itoa(l.out), "--use-server-token-count", "--output-artifact-dir", dir, "--ui", "none")
	if err != nil {
		return nil, err
	}
	var doc map[string]json.RawMessage
	if err := readJSON(filepath.Join(dir, "profile_export_aiperf.json"), &doc); err != nil {
		return nil, err
	}
	v := values{}
	for key, name := range map[string]string{"ttft": "time_to_first_token", "tpot": "inter_token_latency", "ttst": "time_to_second_token", "e2el": "request_latency"} {
		var m struct{ Avg float64 }
		if json.Unmarshal(doc[name], &m) == nil && m.Avg > 0 {
			v[key] = m.Avg
		}
	}
	return v, nil
}

func guidellm(o *options, url, dir string) (values, error) {
	l := &o.load
	path := filepath.Join(dir, "out.json")
	err := call(o.guidellm, "run", "--backend", "kind=openai_http,target="+url+",model=stub,request_format=/v1/chat/completions",
		"--profile", "kind=concurrent,streams="+strconv.Itoa(l.concurrency), "--constraint", "kind=max_requests,count="+strconv.Itoa(l.requests),
		"--tokenizer", "kind=hf_auto,model="+o.tokenizer, "--data", fmt.Sprintf("kind=synthetic_text,prompt_tokens=%d,output_tokens=%d", l.in, l.out),
		"--output", "kind=json,path="+path, "--disable-console")
	var doc struct {
		Benchmarks []struct {
			Metrics map[string]json.RawMessage `json:"metrics"`
		} `json:"benchmarks"`
	}
	if err = errors.Join(err, readJSON(path, &doc)); err != nil {
		return nil, err
	}
	if len(doc.Benchmarks) != 1 {
		return nil, fmt.Errorf("%d benchmarks in the file, want 1", len(doc.Benchmarks))
	}
	v := values{}
	for key, from := range map[string]struct {
		name string
		by   float64
	}{"ttft": {"time_to_first_token_ms", 1}, "tpot": {"inter_token_latency_ms", 1}, "tpot_incl": {"time_per_output_token_ms", 1}, "e2el": {"request_latency", 1000}} {
		var m struct {
			Successful struct{ Mean float64 } `json:"successful"`
		}
		if json.Unmarshal(doc.Benchmarks[0].Metrics[from.name], &m) == nil && m.Successful.Mean > 0 {
			v[key] = m.Successful.Mean * from.by
		}
	}
	return v, nil
}

// noise is how far medians may lie apart: 3 %, or what a round differs from the next by itself.
const noise = 0.03

// report prints the medians, and what lies further from ours than noise, which is an error too.
func report(o *options, tools []*tool, missing []string, out io.Writer) error {
	var t strings.Builder
	fmt.Fprintf(&t, "Stub: first token after %v, then one each %v; %d requests of %d + %d tokens, %d in flight. Means in ms, medians of the rounds of %d in which a tool ended well.",
		o.load.ttft, o.load.itl, o.load.requests, o.load.in, o.load.out, o.load.concurrency, o.rounds)
	for _, name := range missing {
		fmt.Fprintf(&t, " %s is left out: it was not installed.", name)
	}
	t.WriteString("\n\n| key |")
	for _, tool := range tools {
		fmt.Fprintf(&t, " %s (%d) |", tool.name, len(tool.got))
	}
	t.WriteString(" furthest from ours | within noise |\n|---|" + strings.Repeat("---|", len(tools)+2) + "\n")
	var apart []string
	for _, k := range keys {
		fmt.Fprintf(&t, "| %s |", k.text)
		base, spread := tools[0].median(k.key)
		worst, verdict := 0.0, "yes"
		for _, tool := range tools {
			m, s := tool.median(k.key)
			if m == 0 {
				t.WriteString(" – |")
				continue
			}
			fmt.Fprintf(&t, " %.2f |", m)
			off := math.Abs(m - base)
			worst = max(worst, off)
			if off > max(noise*base, spread, s) {
				verdict, apart = "NO", append(apart, fmt.Sprintf("%s of %s", k.key, tool.name))
			}
		}
		fmt.Fprintf(&t, " %.2f | %s |\n", worst, verdict)
	}
	if _, err := io.WriteString(out, t.String()); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if len(apart) > 0 {
		return fmt.Errorf("further apart than noise: %s", strings.Join(apart, ", "))
	}
	return nil
}

// median of the rounds, 0 without any, and how far they are apart.
func (t *tool) median(key string) (m, spread float64) {
	var v []float64
	for _, g := range t.got {
		if g[key] > 0 {
			v = append(v, g[key])
		}
	}
	if len(v) == 0 {
		return 0, 0
	}
	slices.Sort(v)
	return v[len(v)/2], v[len(v)-1] - v[0]
}
