package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tandem/test/bench/workload"
)

// Vocabulary maps the numbers of synthetic content to words that are one token each, so that a text of n words is n tokens.
type Vocabulary struct {
	words []string
	ids   []int32 // of " word"; nil = not known
}

// PlainVocabulary is made of common English words, for servers whose tokenizer is not at hand.
func PlainVocabulary() *Vocabulary { return &Vocabulary{words: strings.Fields(plainWords)} }

// leastWords is how many words a vocabulary must have: fewer would repeat themselves.
const leastWords = 64

// ErrVocabulary says that a tokenizer has too few plain words.
var ErrVocabulary = errors.New("the tokenizer has too few words that are one token, alone and in a text")

// NewVocabulary takes from a tokenizer the plain words that are one token, at the beginning of a text and after a blank.
// encode must add no special tokens; decode is the text of one id, "" for special ones.
func NewVocabulary(size int, decode func(id int32) string, encode func(text string) []int32) (*Vocabulary, error) {
	v := &Vocabulary{}
	for id := range int32(size) {
		word, ok := strings.CutPrefix(decode(id), " ")
		if !ok || !plain(word) {
			continue
		}
		if got := encode(word + " " + word); len(got) == 2 && got[1] == id {
			v.words, v.ids = append(v.words, word), append(v.ids, id)
		}
	}
	if len(v.words) < leastWords {
		return nil, fmt.Errorf("%w: %d", ErrVocabulary, len(v.words))
	}
	return v, nil
}

// plain tells whether a word is made of two to twelve small letters.
func plain(word string) bool {
	return len(word) >= 2 && len(word) <= 12 && !strings.ContainsFunc(word, func(r rune) bool { return r < 'a' || r > 'z' })
}

// Prompts makes request bodies of a workload.
type Prompts struct {
	API         API
	Model       string
	Vocabulary  *Vocabulary
	IDs         bool // prompts as token ids; Completions only, and the vocabulary must know them
	Whole       bool // ask for answers in one piece, not for streams
	IgnoreEOS   bool // ask for exactly the answer's length
	Temperature float64
	Salt        uint64                     // makes content new to the server, 0 = that of the workload's seed
	Overhead    int                        // tokens that the server's template adds to a prompt, taken from what is the request's own
	Extra       map[string]json.RawMessage // members of every body, which win
	// Replies tells the real answer that stands for a segment in later prompts; nil or false: a synthetic one of the
	// recorded length.
	Replies func(unit int, segment uint64) (string, bool)

	workload *workload.Workload
	shared   map[uint64]bool
}

// Bind says which workload the requests are of.
func (p *Prompts) Bind(w *workload.Workload) error {
	if p.IDs && (p.API != Completions || p.Vocabulary.ids == nil) {
		return errors.New("prompts as token ids need the completions API and a tokenizer")
	}
	p.workload, p.shared = w, w.Shared()
	return nil
}

// seed of a segment's content in a play: what conversations share stays the same when a workload is gone through again.
func (p *Prompts) seed(s workload.Segment, play int) uint64 {
	seed := workload.Mix(p.workload.Seed, p.Salt)
	if play > 0 && !p.shared[s.ID] {
		seed = workload.Mix(seed, uint64(play))
	}
	return workload.Mix(seed, s.ID)
}

// piece is a part of a prompt by who says it.
type piece struct {
	assistant bool
	text      []byte
}

// Body makes the body of a request.
func (p *Prompts) Body(r *workload.Request, play, unit int) ([]byte, error) {
	b := make([]byte, 0, 256+8*r.Input)
	b = append(b, '{')
	var err error
	switch {
	case p.API == Chat:
		b = append(b, `"messages":`...)
		b, err = p.messages(b, r, play, unit)
		if len(r.Tools) > 0 {
			b = append(append(b, `,"tools":`...), r.Tools...)
		}
	case p.IDs && len(p.workload.Texts) == 0:
		b = append(b, `"prompt":`...)
		b = p.ids(b, r, play)
	default:
		b = append(b, `"prompt":`...)
		b, err = p.prompt(b, r, play, unit)
	}
	if err != nil {
		return nil, err
	}
	for _, m := range p.members(r) {
		if _, over := p.Extra[m.name]; !over {
			b = append(append(append(append(b, `,"`...), m.name...), `":`...), m.value...)
		}
	}
	for _, name := range sortedKeys(p.Extra) {
		b = strconv.AppendQuote(append(b, ','), name)
		b = append(append(b, ':'), p.Extra[name]...)
	}
	return append(b, '}'), nil
}

func sortedKeys(m map[string]json.RawMessage) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

type member struct{ name, value string }

// members are the settings of a body.
func (p *Prompts) members(r *workload.Request) []member {
	model := p.Model
	if r.LoRA != "" {
		model = r.LoRA
	}
	name, _ := json.Marshal(model) // a string cannot fail
	temperature := p.Temperature
	if r.Temperature != nil {
		temperature = *r.Temperature
	}
	out := strconv.Itoa(max(1, r.Output))
	m := []member{
		{"model", string(name)},
		{"stream", strconv.FormatBool(!p.Whole)},
		{"max_tokens", out},
		{"temperature", strconv.FormatFloat(temperature, 'g', -1, 64)},
	}
	if !p.Whole {
		m = append(m, member{"stream_options", `{"include_usage":true}`})
	}
	if p.IgnoreEOS {
		m = append(m, member{"ignore_eos", "true"}, member{"min_tokens", out})
	}
	if r.Priority != nil {
		m = append(m, member{"priority", strconv.FormatFloat(*r.Priority, 'g', -1, 64)})
	}
	return m
}

// pieces cuts a prompt at the answers in it.
func (p *Prompts) pieces(r *workload.Request, play, unit int) []piece {
	replies := map[uint64]bool{}
	for i := range p.turns(r) {
		replies[i] = true
	}
	overhead := p.Overhead
	var out []piece
	for s := range r.Segments {
		reply := replies[s.ID]
		if len(out) == 0 || out[len(out)-1].assistant != reply {
			out = append(out, piece{assistant: reply})
		}
		at := &out[len(out)-1]
		if reply && p.Replies != nil {
			if text, ok := p.Replies(unit, s.ID); ok {
				at.text = append(at.text, text...)
				continue
			}
		}
		n := s.Tokens
		if !reply && !p.shared[s.ID] && overhead > 0 && n > 1 {
			cut := min(overhead, n-1)
			overhead -= cut
			n -= cut
		}
		at.text = p.words(at.text, s, n, play)
	}
	return out
}

// turns yields the segments of a prompt that are answers to earlier turns.
func (p *Prompts) turns(r *workload.Request) func(yield func(uint64) bool) {
	return func(yield func(uint64) bool) {
		for _, a := range r.After {
			for q := &p.workload.Requests[a]; ; q = &p.workload.Requests[q.After[0]] {
				if q.Reply != 0 && !yield(q.Reply) {
					return
				}
				if len(q.After) == 0 {
					break
				}
			}
		}
	}
}

// words appends n words of a segment, with a blank before each but the first of a text; or its verbatim text.
func (p *Prompts) words(b []byte, s workload.Segment, n, play int) []byte {
	if text, ok := p.workload.Texts[s.ID]; ok {
		return append(b, text...)
	}
	at, size := p.seed(s, play), uint64(len(p.Vocabulary.words))
	for i := range n {
		if len(b) > 0 {
			b = append(b, ' ')
		}
		b = append(b, p.Vocabulary.words[workload.Mix(at, uint64(i))%size]...)
	}
	return b
}

// ids appends the prompt as an array of token ids.
func (p *Prompts) ids(b []byte, r *workload.Request, play int) []byte {
	b = append(b, '[')
	size := uint64(len(p.Vocabulary.ids))
	for s := range r.Segments {
		at := p.seed(s, play)
		for i := range s.Tokens {
			b = strconv.AppendInt(b, int64(p.Vocabulary.ids[workload.Mix(at, uint64(i))%size]), 10)
			b = append(b, ',')
		}
	}
	b[len(b)-1] = ']'
	return b
}

// prompt appends the prompt as one string.
func (p *Prompts) prompt(b []byte, r *workload.Request, play, unit int) ([]byte, error) {
	var text []byte
	for i, x := range p.pieces(r, play, unit) {
		if i > 0 {
			text = append(text, ' ')
		}
		text = append(text, x.text...)
	}
	return appendString(b, text)
}

// messages appends the messages of a chat.
func (p *Prompts) messages(b []byte, r *workload.Request, play, unit int) ([]byte, error) {
	if len(r.Messages) > 0 {
		return append(b, r.Messages...), nil
	}
	var err error
	for i, x := range p.pieces(r, play, unit) {
		if i == 0 {
			b = append(b, '[')
		} else {
			b = append(b, ',')
		}
		role := "user"
		if x.assistant {
			role = "assistant"
		}
		b = append(append(append(b, `{"role":"`...), role...), `","content":`...)
		if b, err = appendString(b, x.text); err != nil {
			return nil, err
		}
		b = append(b, '}')
	}
	return append(b, ']'), nil
}

// appendString appends a JSON string.
func appendString(b, text []byte) ([]byte, error) {
	if !slices.ContainsFunc(text, func(c byte) bool { return c < ' ' || c == '"' || c == '\\' || c >= 0x7f }) {
		return append(append(append(b, '"'), text...), '"'), nil
	}
	s, err := json.Marshal(string(text))
	if err != nil {
		return nil, fmt.Errorf("prompt: %w", err)
	}
	return append(b, s...), nil
}
