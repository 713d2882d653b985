//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tandem/serve/openai"
)

// manyChoices is an answer of several choices, whole or put together from a stream.
type manyChoices struct {
	texts, ends []string
	ids         [][]int32
	logprobs    []int // entries
	sums        []float64
	usage       openai.Usage
}

// choicesChunk is a whole reply or an event of a completion.
type choicesChunk struct {
	Choices []struct {
		Index    int     `json:"index"`
		Text     string  `json:"text"`
		Finish   *string `json:"finish_reason"`
		IDs      []int32 `json:"token_ids"`
		Logprobs *struct {
			Values []float64 `json:"token_logprobs"`
		} `json:"logprobs"`
	} `json:"choices"`
	Usage *openai.Usage   `json:"usage"`
	Error json.RawMessage `json:"error"`
}

func (m *manyChoices) add(t *testing.T, data []byte) {
	t.Helper()
	var c choicesChunk
	if err := json.Unmarshal(data, &c); err != nil || c.Error != nil {
		t.Fatalf("%v in %s", err, data)
	}
	for _, x := range c.Choices {
		for len(m.texts) <= x.Index {
			m.texts, m.ends, m.ids = append(m.texts, ""), append(m.ends, ""), append(m.ids, nil)
			m.logprobs, m.sums = append(m.logprobs, 0), append(m.sums, 0)
		}
		m.texts[x.Index] += x.Text
		m.ids[x.Index] = append(m.ids[x.Index], x.IDs...)
		if x.Finish != nil {
			m.ends[x.Index] += *x.Finish
		}
		if x.Logprobs != nil {
			m.logprobs[x.Index] += len(x.Logprobs.Values)
			for _, v := range x.Logprobs.Values {
				m.sums[x.Index] += v
			}
		}
	}
	if c.Usage != nil {
		m.usage = *c.Usage
		m.usage.PromptDetails = nil // depends on what was asked before
	}
}

// askMany sends a completion, streamed or not.
func askMany(t *testing.T, url, members string, streamed bool) *manyChoices {
	t.Helper()
	return askManyTelling(t, url, members, 24, streamed, func(int) {})
}

// askManyTelling calls told with the number of events that came.
func askManyTelling(t *testing.T, url, members string, tokens int, streamed bool, told func(int)) *manyChoices {
	t.Helper()
	body := `{"prompt":"Once upon a time there was a fox, and","return_token_ids":true,"max_tokens":` + strconv.Itoa(tokens) + `,` + members + `}`
	if streamed {
		body = strings.Replace(body, "{", `{"stream":true,"stream_options":{"include_usage":true},`, 1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+textPath, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var m manyChoices
	if !streamed {
		var buf bytes.Buffer
		_, _ = buf.ReadFrom(resp.Body)
		m.add(t, buf.Bytes())
		return &m
	}
	events := openai.NewEventReader(resp.Body, 0)
	for n := 0; ; n++ {
		told(n)
		ev, err := events.Next()
		if err != nil {
			t.Fatal(err)
		}
		data, ok := openai.EventData(ev)
		if ok && string(data) == "[DONE]" {
			return &m
		}
		if ok {
			m.add(t, data)
		}
	}
}

// TestChoices asks for several choices of a mixed worker and of a pair. All give
// the same, whole and streamed; choice 0 is what a request of one choice gets.
func TestChoices(t *testing.T) {
	mixed := startWorker(t, "mixed", workerConfig{threads: 1})
	pair := startCluster(t, workerConfig{threads: 1}, "")
	plain := startFrontend(t, []*process{pair.ctx}, []*process{pair.gen}, "early_first_token: false\ngen_tokids_ctxbytes: true\n")
	const seeded = `"temperature":1.1,"seed":5,"logprobs":1,"n":`
	want := askMany(t, mixed.url, seeded+"4", false)
	if len(want.texts) != 4 || want.texts[0] == want.texts[1] || want.texts[1] == want.texts[2] {
		t.Fatalf("%q", want.texts)
	}
	tokens := 0
	for i, ids := range want.ids {
		tokens += len(ids)
		if want.logprobs[i] != len(ids) {
			t.Errorf("choice %d has %d tokens and %d log-probabilities", i, len(ids), want.logprobs[i])
		}
	}
	if want.usage.CompletionTokens != tokens {
		t.Errorf("%d tokens, usage %+v", tokens, want.usage)
	}
	for _, url := range []string{mixed.url, pair.url, plain.url} {
		for _, streamed := range []bool{false, true} {
			if got := askMany(t, url, seeded+"4", streamed); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, streamed %v:\n got %+v\nwant %+v", url, streamed, got, want)
			}
			one := askMany(t, url, seeded+"1", streamed)
			if one.texts[0] != want.texts[0] || one.usage.PromptTokens != want.usage.PromptTokens {
				t.Errorf("%s, streamed %v: one choice %q, the first of four %q", url, streamed, one.texts[0], want.texts[0])
			}
			greedy := askMany(t, url, `"temperature":0,"n":3`, streamed)
			if len(greedy.texts) != 3 || greedy.texts[0] != greedy.texts[1] || greedy.texts[1] != greedy.texts[2] {
				t.Errorf("%s, streamed %v: greedy choices differ: %q", url, streamed, greedy.texts)
			}
		}
		means := make([]float64, 4)
		for i := range means {
			means[i] = want.sums[i] / float64(len(want.ids[i]))
		}
		best := askMany(t, url, `"temperature":1.1,"seed":5,"best_of":4`, false)
		if i := slices.Index(want.texts, best.texts[0]); len(best.texts) != 1 || i < 0 || means[i] != slices.Max(means) || best.usage != want.usage {
			t.Errorf("%s: the best of %v is said to be %d, usage %+v", url, means, i, best.usage)
		}
	}
	waitClean(t, settleLimit, mixed, pair.ctx, pair.gen)
}

// TestChoicesOfAClientThatLeaves frees the blocks of all choices at both workers.
func TestChoicesOfAClientThatLeaves(t *testing.T) {
	pair := startCluster(t, workerConfig{threads: 1}, "")
	for _, events := range []int{0, 3, 12} {
		ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
		body := fmt.Sprintf(`{"prompt":%q,"max_tokens":1500,"ignore_eos":true,"n":5,"stream":true}`, prose(1, 300))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, pair.url+textPath, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if events == 0 {
			time.AfterFunc(30*time.Millisecond, cancel) // at some moment of the first leg
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			r := openai.NewEventReader(resp.Body, 0)
			for n := 0; n < events; {
				ev, err := r.Next()
				if err != nil {
					t.Fatal(err)
				}
				if _, ok := openai.EventData(ev); ok {
					n++
				}
			}
			cancel()
			resp.Body.Close()
		} else if events > 0 {
			t.Fatal(err)
		}
		cancel()
		waitClean(t, settleLimit, pair.ctx, pair.gen)
	}
}

// TestResumeOfChoices kills the gen worker in the middle of a stream: all choices
// go on at another one.
func TestResumeOfChoices(t *testing.T) {
	ctxWorker := startWorker(t, "ctx", workerConfig{threads: 1})
	first, second := startWorker(t, "gen", workerConfig{threads: 1}), startWorker(t, "gen", workerConfig{threads: 1})
	front := startFrontend(t, []*process{ctxWorker}, []*process{first, second}, "")
	const members = `"temperature":1,"seed":11,"logprobs":1,"n":3,"stop":["never said"],"ignore_eos":true`
	const tokens = 160 // the worker must still be at it when it is killed
	want := askManyTelling(t, front.url, members, tokens, false, func(int) {})
	running := func() *process {
		if stats(t, first).Active > 0 {
			return first
		}
		return second
	}
	killed := false
	got := askManyTelling(t, front.url, members, tokens, true, func(n int) {
		if n == 6 && !killed {
			killed = true
			running().signal(t, syscall.SIGKILL)
		}
	})
	if !reflect.DeepEqual(got, want) {
		t.Errorf(" got %+v\nwant %+v", got, want)
	}
	resumed := func() bool {
		return strings.Contains(get(t, front.url+"/metrics"), `tandem_streams_resumed_total{outcome="resumed"} 1`)
	}
	if !eventually(settleLimit, resumed) { // it counts after the client has read the end
		t.Error("no stream was resumed: the test shows nothing")
	}
}
