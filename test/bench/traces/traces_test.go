package traces

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/test/bench/workload"
)

// samples are small files of each format, made by hand.
var samples = map[Format]string{
	Native: `{"kind":"trace-header","version":1,"block_size":4,"source":"x","seed":9}
{"request_id":"a","timestamp_ms":0,"conversation_id":"c","input_length":9,"output_length":3,"hash_ids":[1,2],"observed":{"ttft_ms":5,"e2el_ms":10,"cached":0,"outcome":"ok"}}
{"request_id":"c","wait_for":["a","b"],"delay_ms":5,"tool_wait_ms":7,"conversation_id":"c","input_length":16,"output_length":3,"hash_ids":[1,2,3,4],"final":true}
{"request_id":"b","timestamp_ms":1.5,"conversation_id":"s","parent_conversation_id":"c","agent_kind":"subagent","input_length":4,"output_length":2,"hash_ids":[1]}
`,
	Mooncake: `{"timestamp": 0, "input_length": 1100, "output_length": 20, "hash_ids": [0, 1, 2]}
{"timestamp": 2500, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 3000, "session_id": 7, "input_length": 600, "output_length": 100, "hash_ids": [3, 4]}
{"delay": 250, "session_id": 7, "input_length": 50, "output_length": 10, "delta": true}
`,
	Weka: `{"id":"w","models":["m"],"block_size":64,"tool_tokens":100,"system_tokens":28,"requests":[
 {"t":0,"type":"s","model":"m","in":200,"out":10,"hash_ids":[1,2,3],"api_time":1.5,"ttft":0.5},
 {"t":2,"type":"subagent","agent_id":"g","requests":[{"t":0,"type":"s","in":70,"out":5,"hash_ids":[9],"api_time":1},{"t":3,"type":"n","in":130,"out":5,"hash_ids":[9,10]}]},
 {"t":9,"type":"s","in":260,"out":10,"hash_ids":[1,2,3,4],"think_time":0.25},
 {"t":10,"type":"subagent","requests":[{"t":0,"type":"s","in":10,"out":5}]}]}
{"id":"v","block_size":64,"tool_tokens":100,"system_tokens":28,"requests":[{"t":0,"type":"s","in":140,"out":1,"hash_ids":[1,2]}]}
`,
	AppliedCompute: `{"num_turns":2,"input_prompt_length":100,"assistant_response_length":[10,20],"tool_call_output_length":[5,0],"tool_call_latency":[0.5,2],"final_assistant_response_length":7}
`,
	Azure:    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:51.1600000,374,44\n2023-11-16 18:01:52.4100000,396,109\n",
	BurstGPT: "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45.5,ChatGPT,1087,230,1317,Conversation log\n",
	ShareGPT: `[{"id":"1","conversations":[{"from":"human","value":"one two three four"},{"from":"gpt","value":"five six seven eight nine"}]},
 {"id":"2","conversations":[{"from":"human","value":"hi"},{"from":"gpt","value":"hello"}]},
 {"id":"3","conversations":[{"from":"gpt","value":"x"}]}]`,
	Prompts: `{"text":"tell me a \"story\"","output_length":9}
{"turns":["first turn",{"text":"second turn","delay":20,"output_length":4}]}
`,
}

func read(t testing.TB, f Format, text string, o Options) *workload.Workload {
	t.Helper()
	o.Name, o.Format = "x", f
	w, _, err := Read(strings.NewReader(text), o)
	if err != nil {
		t.Fatalf("%s: %v", f, err)
	}
	return w
}

// line shows what a request is.
func line(w *workload.Workload, i int) string {
	q := &w.Requests[i]
	at := "-"
	if q.Arrival != workload.NoArrival {
		at = q.Arrival.String()
	}
	return fmt.Sprintf("%s at %s conv %q parent %q after %v wait %v+%v in %d (tail %d) out %d", q.ID, at, q.Conversation, q.Parent, q.After, q.Delay, q.ToolWait, q.Input, q.Tail(), q.Output)
}

func TestFormats(t *testing.T) {
	for f, want := range map[Format][]string{
		Native: {
			`a at 0s conv "c" parent "" after [] wait 0s+0s in 9 (tail 1) out 3`,
			`b at 1.5ms conv "s" parent "c" after [] wait 0s+0s in 4 (tail 0) out 2`,
			`c at - conv "c" parent "" after [0 1] wait 5ms+7ms in 16 (tail 0) out 3`,
		},
		Mooncake: {
			`m0 at 0s conv "" parent "" after [] wait 0s+0s in 1100 (tail 0) out 20`,
			`m1 at 2.5s conv "" parent "" after [] wait 0s+0s in 1024 (tail 0) out 5`,
			`m2 at 3s conv "7" parent "" after [] wait 0s+0s in 600 (tail 0) out 100`,
			`m3 at - conv "7" parent "" after [2] wait 250ms+0s in 750 (tail 0) out 10`,
		},
		Weka: {
			`w.0 at - conv "w" parent "" after [] wait 0s+0s in 200 (tail 8) out 10`,
			`w/g.0 at - conv "w/g" parent "w" after [0] wait 0s+0s in 70 (tail 6) out 5`,
			`w/g.1 at - conv "w/g" parent "w" after [1] wait 2s+0s in 130 (tail 2) out 5`,
			`w.1 at - conv "w" parent "" after [0 2] wait 250ms+0s in 260 (tail 4) out 10`,
			`w/sub3.0 at - conv "w/sub3" parent "w" after [3] wait 0s+0s in 10 (tail 10) out 5`,
			`v.0 at - conv "v" parent "" after [] wait 0s+0s in 140 (tail 12) out 1`,
		},
		AppliedCompute: {
			`a0.t0 at - conv "a0" parent "" after [] wait 0s+0s in 100 (tail 0) out 10`,
			`a0.t1 at - conv "a0" parent "" after [0] wait 0s+500ms in 115 (tail 0) out 20`,
			`a0.t2 at - conv "a0" parent "" after [1] wait 0s+2s in 135 (tail 0) out 7`,
		},
		Azure:    {`l2 at 0s conv "" parent "" after [] wait 0s+0s in 374 (tail 374) out 44`, `l3 at 1.25s conv "" parent "" after [] wait 0s+0s in 396 (tail 396) out 109`},
		BurstGPT: {`l2 at 0s conv "" parent "" after [] wait 0s+0s in 472 (tail 472) out 18`, `l3 at 40.5s conv "" parent "" after [] wait 0s+0s in 1087 (tail 1087) out 230`},
		ShareGPT: {`s0 at - conv "" parent "" after [] wait 0s+0s in 4 (tail 0) out 5`},
		Prompts: {
			`p0.t0 at - conv "p0" parent "" after [] wait 0s+0s in 4 (tail 0) out 9`,
			`p1.t0 at - conv "p1" parent "" after [] wait 0s+0s in 2 (tail 0) out 1`,
			`p1.t1 at - conv "p1" parent "" after [1] wait 20ms+0s in 5 (tail 0) out 4`,
		},
	} {
		w := read(t, f, samples[f], Options{Count: func(s string) int { return len(strings.Fields(s)) }})
		var got []string
		for i := range w.Requests {
			got = append(got, line(w, i))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s", f, strings.Join(got, "\n"))
		}
		if found, err := detect([]byte(samples[f])); err != nil || found != f {
			t.Errorf("%s is taken for %s: %v", f, found, err)
		}
	}
}

func TestHashIDsAreContent(t *testing.T) {
	w := read(t, Native, samples[Native], Options{})
	a, b, c := w.Requests[0].AppendTokens(nil, w.Seed, 1000), w.Requests[1].AppendTokens(nil, w.Seed, 1000), w.Requests[2].AppendTokens(nil, w.Seed, 1000)
	if w.Seed != 9 || !slices.Equal(a[:8], c[:8]) || !slices.Equal(a[:4], b) || slices.Equal(a[:9], c[:9]) {
		t.Errorf("%v\n%v\n%v", a, b, c)
	}
	w = read(t, Weka, samples[Weka], Options{})
	one, other := w.Requests[0].AppendTokens(nil, 0, 1000), w.Requests[5].AppendTokens(nil, 0, 1000)
	if !slices.Equal(one[:128], other[:128]) || slices.Equal(one[128:140], other[128:140]) {
		t.Error("conversations share something else than tools and system prompt")
	}
	sub := w.Requests[1].AppendTokens(nil, 0, 1000)
	if slices.Equal(sub[:64], one[:64]) {
		t.Error("the sub-agent begins as its parent though its ids do not")
	}
	w = read(t, Mooncake, samples[Mooncake], Options{})
	third, fourth := w.Requests[2].AppendTokens(nil, 0, 1000), w.Requests[3].AppendTokens(nil, 0, 1000)
	if !slices.Equal(third, fourth[:600]) || w.Requests[3].Prompt[2].ID != w.Requests[2].Reply {
		t.Error("a turn that says what it adds does not go on from the one before and its answer")
	}
}

func TestGzip(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(samples[Native] + `{"request_id":"half`))
	_ = z.Flush() // a writer that died: no end, half a line
	w, _, err := Read(&b, Options{Name: "x"})
	if err != nil || len(w.Requests) != 3 {
		t.Errorf("%v", err)
	}
}

func TestErrorsNameLineAndField(t *testing.T) {
	row := func(s string) string { return samples[Native] + s + "\n" }
	for want, c := range map[string]struct {
		f    Format
		text string
	}{
		`x:5: request_id "a" is also that of request 1`:    {Native, row(`{"request_id":"a","input_length":1,"output_length":1}`)},
		`x:5: request_id is missing`:                       {Native, row(`{"input_length":1,"output_length":1}`)},
		`x:5: input_length and output_length are 0 and 1`:  {Native, row(`{"request_id":"z","output_length":1}`)},
		`x:5: input_length is a JSON string, want int`:     {Native, row(`{"request_id":"z","input_length":"1"}`)},
		`x:5: wait_for names "nobody"`:                     {Native, row(`{"request_id":"z","wait_for":["nobody"],"input_length":1}`)},
		`x:5: timestamp_ms is -1`:                          {Native, row(`{"request_id":"z","timestamp_ms":-1,"input_length":1}`)},
		`x:5: hash_ids has 1 ids, 9 tokens in blocks of 4`: {Native, row(`{"request_id":"z","input_length":9,"hash_ids":[1]}`)},
		`x:5: hash_ids has the id 3 behind another`:        {Native, row(`{"request_id":"z","input_length":8,"hash_ids":[3,2]}`)},
		`x:6: wait_for waits, by way of others`:            {Native, row("{\"request_id\":\"y\",\"wait_for\":[\"a\"],\"input_length\":1}\n" + `{"request_id":"p","wait_for":["q"],"input_length":1}` + "\n" + `{"request_id":"q","wait_for":["p"],"input_length":1}`)},
		`x:5: unexpected`:                                  {Native, row(`{"request_id":`)},
		`x:1: version is not 1`:                            {Native, `{"kind":"trace-header","version":2}`},
		`x:1: block_size is missing`:                       {Native, `{"request_id":"a","input_length":8,"hash_ids":[1]}`},
		`x:2: hash_ids has 1 ids, 1024 tokens`:             {Mooncake, "\n" + `{"timestamp":0,"input_length":1024,"output_length":5,"hash_ids":[0]}`},
		`x:1: requests[1].requests[0] has t -1`:            {Weka, `{"id":"w","requests":[{"t":0,"type":"s","in":9},{"t":0,"type":"subagent","requests":[{"t":-1,"in":3}]}]}`},
		`x:1: requests[0].in is 0`:                         {Weka, `{"id":"w","requests":[{"t":0,"type":"s"}]}`},
		`x:1: tool_call_output_length has 1 values`:        {AppliedCompute, `{"input_prompt_length":1,"assistant_response_length":[1,2],"tool_call_output_length":[1],"tool_call_latency":[1,1]}`},
		`x:1: num_turns is 9`:                              {AppliedCompute, `{"num_turns":9,"input_prompt_length":1}`},
		`x:1: ContextTokens is missing`:                    {Azure, "TIMESTAMP,GeneratedTokens\n"},
		`x:2: ContextTokens is "x"`:                        {Azure, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:51.16,x,1\n"},
		`x:2: TIMESTAMP is "now"`:                          {Azure, "TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,1\n"},
		`x:3: Timestamp is "1"`:                            {BurstGPT, "Timestamp,Request tokens,Response tokens\n5,1,1\n1,1,1\n"},
		`x:1: the record is a JSON string, want an object`: {Mooncake, `"x"`},
		`x:1: hash_ids is a JSON number, want an array`:    {Mooncake, `{"input_length":1,"hash_ids":5}`},
		`x:1: turns[0] is neither`:                         {Prompts, `{"turns":[5]}`},
		`x:1: text of turn 1 is empty`:                     {Prompts, `{"turns":[""]}`},
		`no request is in it`:                              {ShareGPT, `[]`},
		`x:1: unexpected end`:                              {ShareGPT, `[{"conversations":[]}`},
		`format "odd"`:                                     {"odd", `{}`},
		`cannot be told`:                                   {Auto, `{}`},
	} {
		_, _, err := Read(strings.NewReader(c.text), Options{Name: "x", Format: c.f})
		if err == nil || !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q, got %v", c.f, want, err)
		}
	}
}

func TestLenientLeavesOutWhatIsWrong(t *testing.T) {
	text := samples[Native] + `{"request_id":"a","input_length":1,"output_length":1}
{"request_id":"z","input_length":"x"}
{"request_id":"y","wait_for":["nobody"],"input_length":3,"output_length":1}
{"request_id":"p","wait_for":["q"],"input_length":1,"output_length":1}
{"request_id":"q","wait_for":["p"],"input_length":1,"output_length":1}
`
	w, rep, err := Read(strings.NewReader(text), Options{Name: "x", Lenient: true})
	if err != nil || len(w.Requests) != 4 || len(rep.LeftOut) != 5 || w.Requests[3].ID != "y" {
		t.Errorf("%v, %+v", err, rep)
	}
	if problems := w.Check(); len(problems) > 0 {
		t.Error(problems)
	}
}

// Times count from the first row, whatever it says.
func TestTimesBeforeZero(t *testing.T) {
	w, _, err := Read(strings.NewReader("Timestamp,Request tokens,Response tokens\n-5,1,1\n-4,1,1\n"), Options{Name: "x", Format: BurstGPT})
	if err != nil || w.Requests[1].Arrival != time.Second {
		t.Errorf("%v, %v", w, err)
	}
}

// What a corpus' limits leave out is counted.
func TestRowsBeyondTheLimits(t *testing.T) {
	const short = `{"conversations":[{"from":"human","value":"one"},{"from":"gpt","value":"two"}]}`
	read := func(text string) (*Report, error) {
		_, rep, err := Read(strings.NewReader(text), Options{Name: "x", Format: ShareGPT})
		return rep, err
	}
	if _, err := read(short); err == nil || !strings.Contains(err.Error(), "no request is in it: 1 rows") {
		t.Error(err)
	}
	rep, err := read("[" + short + "," + samples[ShareGPT][1:])
	var b strings.Builder
	if err != nil || rep.Print(&b) != nil || !strings.Contains(b.String(), fmt.Sprintf("left out: %d rows", rep.Skipped)) || rep.Skipped < 1 {
		t.Errorf("%v: %s", err, b.String())
	}
}

func TestBlocksThatCannotBeWritten(t *testing.T) {
	w := &workload.Workload{Requests: []workload.Request{{ID: "a", Input: 9, Output: 1}}}
	if err := Write(io.Discard, w, Native, -7); !errors.Is(err, ErrTrace) {
		t.Error(err)
	}
}

func TestReport(t *testing.T) {
	w, rep, err := Read(strings.NewReader(samples[Weka]), Options{Name: "x"})
	if err != nil || rep.Requests != 6 || rep.Conversations != 4 || rep.Trees != 2 || rep.Kept != 1 || rep.Resets != 0 {
		t.Errorf("%+v, %v", rep, err)
	}
	rep.At(w, 10_000)
	var b strings.Builder
	if err := rep.Print(&b); err != nil || !strings.Contains(b.String(), "6 requests, 4 conversations, 2 trees") || !strings.Contains(b.String(), "of 10000 tokens") {
		t.Errorf("%s %v", b.String(), err)
	}
}

// What is written is read as it was: who waits for whom, lengths, times and what prompts share.
func TestRoundTrips(t *testing.T) {
	o := workload.C4(6, 5)
	o.Fanout = 0.3
	made := workload.Agentic(o)
	for i := range made.Requests {
		made.Requests[i].ToolWait = made.Requests[i].ToolWait.Round(time.Millisecond)
	}
	for _, f := range Writable {
		var b bytes.Buffer
		if err := Write(&b, made, f, 64); err != nil {
			t.Fatal(err)
		}
		first := b.String()
		got := read(t, f, first, Options{Seed: made.Seed})
		if len(got.Requests) != len(made.Requests) {
			t.Fatalf("%s: %d requests become %d", f, len(made.Requests), len(got.Requests))
		}
		byID := map[string]*workload.Request{}
		for i := range got.Requests {
			byID[got.Requests[i].ID] = &got.Requests[i]
		}
		var lengths, again [][2]int
		for i := range made.Requests {
			a, c := &made.Requests[i], &got.Requests[i]
			lengths, again = append(lengths, [2]int{a.Input, a.Output}), append(again, [2]int{c.Input, c.Output})
			if b := byID[a.ID]; f != Weka && (b == nil || b.Input != a.Input || len(b.After) != len(a.After) || b.Delay+b.ToolWait != a.Delay+a.ToolWait || b.Conversation != a.Conversation) {
				t.Fatalf("%s: %+v becomes %+v", f, a, b)
			}
		}
		slices.SortFunc(lengths, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
		slices.SortFunc(again, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
		if !reflect.DeepEqual(lengths, again) {
			t.Errorf("%s: lengths differ", f)
		}
		size := map[Format]int{Native: 64, Mooncake: 512, Weka: 64}[f]
		if a, b := made.Reuse(size, 0), got.Reuse(size, 0); f != Weka && (a-b > 0.002 || b-a > 0.002) {
			t.Errorf("%s: reuse %.4f becomes %.4f", f, a, b)
		}
		b.Reset()
		if err := Write(&b, got, f, 64); err != nil || f != Weka && stripHead(b.String()) != stripHead(first) {
			t.Errorf("%s: written again it differs: %v", f, err)
		}
	}
	if err := Write(&bytes.Buffer{}, made, Azure, 0); !errors.Is(err, ErrTrace) {
		t.Error(err)
	}
}

// stripHead leaves out the header, which names the source.
func stripHead(s string) string {
	if strings.Contains(s[:40], nativeKind) {
		_, s, _ = strings.Cut(s, "\n")
	}
	return s
}

// fuzz checks that whatever bytes come, the answer is an error or a workload that can be run.
func fuzz(f *testing.F, format Format) {
	f.Add([]byte(samples[format]))
	f.Add([]byte(samples[format][:len(samples[format])/2]))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, lenient := range []bool{false, true} {
			w, _, err := Read(bytes.NewReader(data), Options{Name: "x", Format: format, Lenient: lenient})
			if err != nil {
				continue
			}
			if problems := w.Check(); len(problems) > 0 || len(w.Requests) == 0 {
				t.Errorf("%v in %q", problems, data)
			}
		}
	})
}

func FuzzNative(f *testing.F)         { fuzz(f, Native) }
func FuzzMooncake(f *testing.F)       { fuzz(f, Mooncake) }
func FuzzWeka(f *testing.F)           { fuzz(f, Weka) }
func FuzzAppliedCompute(f *testing.F) { fuzz(f, AppliedCompute) }
func FuzzAzure(f *testing.F)          { fuzz(f, Azure) }
func FuzzBurstGPT(f *testing.F)       { fuzz(f, BurstGPT) }
func FuzzShareGPT(f *testing.F)       { fuzz(f, ShareGPT) }
func FuzzPrompts(f *testing.F)        { fuzz(f, Prompts) }
