package traces

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"tandem/test/bench/workload"
)

// appliedRow is a sequence of tool calls with lengths and times only.
type appliedRow struct {
	Turns    *int      `json:"num_turns"`
	Input    int       `json:"input_prompt_length"`
	Answers  []int     `json:"assistant_response_length"`
	Tools    []int     `json:"tool_call_output_length"`
	Latency  []float64 `json:"tool_call_latency"` // seconds
	LastWord int       `json:"final_assistant_response_length"`
}

func (r *reader) applied(data []byte) error {
	n := 0
	return each(r, data, func(line int, v *appliedRow) error {
		k := len(v.Answers)
		if len(v.Tools) != k || len(v.Latency) != k {
			return r.fail(line, "tool_call_output_length", "has %d values and tool_call_latency %d, assistant_response_length has %d: they go together", len(v.Tools), len(v.Latency), k)
		}
		if v.Turns != nil && *v.Turns != k && *v.Turns != k+1 {
			return r.fail(line, "num_turns", "is %d, but %d turns are there", *v.Turns, k)
		}
		for _, x := range append(append([]int{v.Input - 1, v.LastWord}, v.Answers...), v.Tools...) {
			if x < 0 || x > maxLength {
				return r.fail(line, "input_prompt_length", "or another length is %d, want 0 (of the first prompt 1) to %d", x, maxLength)
			}
		}
		for _, s := range v.Latency {
			if _, ok := millis(1000 * s); !ok {
				return r.fail(line, "tool_call_latency", "has %g, want seconds, 0 at least", s)
			}
		}
		t := workload.NewTalk(r.w, r.o.Seed, fmt.Sprintf("a%d", n))
		n++
		t.Say(v.Input)
		wait := time.Duration(0)
		for i := range k + 1 {
			out := v.LastWord
			if i < k {
				out = v.Answers[i]
			}
			t.Turn(out, 0, wait, nil)
			r.lines = append(r.lines, place{r.o.Name, line})
			if i < k {
				wait, _ = millis(1000 * v.Latency[i])
				if v.Tools[i] > 0 {
					t.Say(v.Tools[i])
				}
			}
		}
		r.w.Requests[t.Last].Final = true
		return nil
	})
}

// table reads a CSV file by the names of its columns.
func (r *reader) table(data []byte, columns []string, do func(line int, cell []string) error) error {
	in := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(data, []byte("\ufeff"))))
	in.FieldsPerRecord = -1
	in.ReuseRecord = true
	var at []int
	for {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		var broken *csv.ParseError
		if errors.As(err, &broken) {
			return &Error{r.o.Name, broken.Line, "", broken.Err.Error()}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", r.o.Name, err)
		}
		line, _ := in.FieldPos(0)
		if at == nil {
			if at, err = r.columns(row, columns); err != nil {
				return err
			}
			continue
		}
		cells := make([]string, len(at))
		for i, p := range at {
			if p < len(row) {
				cells[i] = strings.TrimSpace(row[p])
			}
		}
		if err := do(line, cells); err != nil {
			return err
		}
	}
	if at == nil {
		return &Error{r.o.Name, 1, "", "the table has no header"}
	}
	return nil
}

// columns finds the places of columns in the header.
func (r *reader) columns(header, want []string) ([]int, error) {
	out := make([]int, len(want))
	for i, name := range want {
		out[i] = -1
		for k, have := range header {
			if strings.EqualFold(strings.TrimSpace(have), name) {
				out[i] = k
			}
		}
		if out[i] < 0 {
			return nil, &Error{r.o.Name, 1, name, "is missing: the first line must name the columns"}
		}
	}
	return out, nil
}

// lengths adds a request of which only time and lengths are known.
func (r *reader) lengths(line int, at time.Duration, names [2]string, cells [2]string) error {
	var n [2]int
	for i, c := range cells {
		v, err := strconv.Atoi(c)
		if err != nil || v < 0 || v > maxLength {
			return r.fail(line, names[i], "is %q, want tokens", c)
		}
		n[i] = v
	}
	if n[0] < 1 {
		return r.fail(line, names[0], "is 0: a prompt has a token at least")
	}
	r.add(line, workload.Request{ID: fmt.Sprintf("l%d", len(r.w.Requests)+2), Arrival: at, Input: n[0], Output: n[1]})
	return nil
}

func (r *reader) azure(data []byte) error {
	var first time.Time
	return r.table(data, []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, func(line int, cell []string) error {
		var at time.Time
		var err error
		for _, layout := range []string{"2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", time.RFC3339Nano} {
			if at, err = time.Parse(layout, cell[0]); err == nil {
				break
			}
		}
		if err != nil {
			return r.fail(line, "TIMESTAMP", "is %q, want 2006-01-02 15:04:05.999", cell[0])
		}
		if first.IsZero() {
			first = at
		}
		if at.Before(first) {
			return r.fail(line, "TIMESTAMP", "is before that of the first row")
		}
		return r.lengths(line, at.Sub(first), [2]string{"ContextTokens", "GeneratedTokens"}, [2]string{cell[1], cell[2]})
	})
}

func (r *reader) burst(data []byte) error {
	first, begun := 0.0, false
	return r.table(data, []string{"Timestamp", "Request tokens", "Response tokens"}, func(line int, cell []string) error {
		s, err := strconv.ParseFloat(cell[0], 64)
		if err != nil {
			return r.fail(line, "Timestamp", "is %q, want seconds", cell[0])
		}
		if !begun {
			first, begun = s, true
		}
		at, ok := millis(1000 * (s - first))
		if !ok {
			return r.fail(line, "Timestamp", "is %q, want seconds, not before those of the first row", cell[0])
		}
		return r.lengths(line, at, [2]string{"Request tokens", "Response tokens"}, [2]string{cell[1], cell[2]})
	})
}

// tokens counts a text.
func (r *reader) tokens(text string) int {
	if r.o.Count != nil {
		return r.o.Count(text)
	}
	return (4*len(strings.Fields(text)) + 2) / 3
}

// verbatim names a text as a segment.
func (r *reader) verbatim(text string, tokens int) workload.Segment {
	if r.w.Texts == nil {
		r.w.Texts = map[uint64]string{}
	}
	s := workload.Segment{ID: workload.ID(workload.Name("text"), workload.Name(text)), Tokens: max(1, tokens)}
	r.w.Texts[s.ID] = text
	return s
}

// shareRow is one conversation of that corpus.
type shareRow struct {
	Conversations []struct {
		From  string `json:"from"`
		Value string `json:"value"`
	} `json:"conversations"`
}

// The limits that others apply to the corpus, so that numbers can be compared.
const (
	shareLeast  = 4
	sharePrompt = 1024
	shareTotal  = 2048
)

func (r *reader) sharegpt(data []byte) error {
	return each(r, data, func(line int, v *shareRow) error {
		if len(v.Conversations) < 2 || v.Conversations[0].From != "human" && v.Conversations[0].From != "user" {
			r.skipped++ // not a question with its answer: the corpus has some
			return nil
		}
		ask, answer := v.Conversations[0].Value, v.Conversations[1].Value
		in, out := r.tokens(ask), r.tokens(answer)
		if in < shareLeast || out < shareLeast || in > sharePrompt || in+out > shareTotal {
			r.skipped++
			return nil
		}
		r.add(line, workload.Request{
			ID: fmt.Sprintf("s%d", len(r.w.Requests)), Arrival: workload.NoArrival, Input: in, Output: out,
			Prompt: []workload.Segment{r.verbatim(ask, in)},
		})
		return nil
	})
}

// promptRow is a prompt, or a conversation.
type promptRow struct {
	Text      string            `json:"text"`
	Output    int               `json:"output_length"`
	Timestamp *float64          `json:"timestamp"`
	Session   json.RawMessage   `json:"session_id"`
	Turns     []json.RawMessage `json:"turns"`
}

// promptTurn is a turn: a text, or an object with more.
type promptTurn struct {
	Text   string  `json:"text"`
	Delay  float64 `json:"delay"` // ms
	Output int     `json:"output_length"`
}

func (r *reader) prompts(data []byte) error {
	n := 0
	return each(r, data, func(line int, v *promptRow) error {
		turns := []promptTurn{{Text: v.Text, Output: v.Output}}
		if len(v.Turns) > 0 {
			turns = nil
			for i, raw := range v.Turns {
				var t promptTurn
				if json.Unmarshal(raw, &t.Text) != nil && json.Unmarshal(raw, &t) != nil {
					return r.fail(line, fmt.Sprintf("turns[%d]", i), "is neither a text nor an object with one")
				}
				turns = append(turns, t)
			}
		}
		t := workload.NewTalk(r.w, r.o.Seed, fmt.Sprintf("p%d", n))
		n++
		for i, turn := range turns {
			delay, ok := millis(turn.Delay)
			if turn.Text == "" || !ok || turn.Output < 0 || turn.Output > maxLength {
				return r.fail(line, "text", "of turn %d is empty, or its delay or output_length cannot be meant", i+1)
			}
			t.Add(r.verbatim(turn.Text, r.tokens(turn.Text)))
			out := turn.Output
			if out == 0 {
				out = max(1, r.o.Output)
			}
			q := t.Turn(out, delay, 0, nil)
			r.lines = append(r.lines, place{r.o.Name, line})
			if i == 0 && v.Timestamp != nil {
				if at, ok := millis(*v.Timestamp); ok {
					r.w.Requests[q].Arrival = at
				}
			}
		}
		r.w.Requests[t.Last].Final = true
		return nil
	})
}
