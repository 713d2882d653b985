package worker

import (
	"cmp"
	"encoding/base64"
	"math"
	"slices"
	"unicode/utf8"

	"tandem/engine/request"
	"tandem/serve/openai"
)

// logprobs turns engine tokens into wire log-probabilities and keeps the
// position in the reply's text.
type logprobs struct {
	job     *job
	offset  int    // whole characters so far
	pending []byte // bytes of an incomplete character
}

func (l *logprobs) tokens(in []request.Token) []openai.TokenLogprob {
	out := make([]openai.TokenLogprob, len(in))
	for i, t := range in {
		out[i] = l.entry(t.ID, t.Logprob)
		out[i].Offset = l.offset
		for _, alt := range t.Top {
			out[i].Top = append(out[i].Top, l.entry(alt.ID, alt.Logprob))
		}
		l.skip(t.ID)
	}
	return out
}

// skip moves the position behind a token.
func (l *logprobs) skip(id int32) {
	if l.job.Tokenizer.IsSpecial(id) {
		return
	}
	l.pending = append(l.pending, l.job.Tokenizer.TokenBytes(id)...)
	for len(l.pending) > 0 && utf8.FullRune(l.pending) {
		_, size := utf8.DecodeRune(l.pending)
		l.pending = l.pending[size:]
		l.offset++
	}
}

func (l *logprobs) entry(id int32, lp float64) openai.TokenLogprob {
	e := openai.TokenLogprob{ID: id, Logprob: lp}
	if l.job.Tokenizer.IsSpecial(id) {
		e.Text = l.job.Tokenizer.Token(id)
		e.Bytes = []byte(e.Text)
		return e
	}
	e.Bytes = l.job.Tokenizer.TokenBytes(id)
	e.Text = string(e.Bytes)
	return e
}

// append encodes the log-probabilities of tokens as the endpoint wants them.
func (l *logprobs) append(dst []byte, in []request.Token) []byte {
	var entries []openai.TokenLogprob
	if l.job.wire.Echo {
		entries = l.prompt()
	}
	entries = append(entries, l.tokens(in)...)
	if l.job.wire.Endpoint == openai.Chat {
		return openai.AppendChatLogprobs(dst, entries)
	}
	return openai.AppendCompletionLogprobs(dst, entries)
}

// minLogprob stands for minus infinity, which JSON cannot say.
const minLogprob = -9999

// tokenLogs is one position of first_gen_log_probs: the chosen token, then the
// alternatives without it.
func tokenLogs(t request.Token) []openai.TokenLog {
	out := []openai.TokenLog{{TokenID: t.ID, Logprob: finite(t.Logprob)}}
	if t.Rank > 0 {
		out[0].Rank = &t.Rank
	}
	for i, alt := range t.Top {
		if alt.ID != t.ID {
			rank := i + 1
			out = append(out, openai.TokenLog{TokenID: alt.ID, Logprob: finite(alt.Logprob), Rank: &rank})
		}
	}
	return out
}

func finite(f float64) float64 {
	if math.IsNaN(f) || f < minLogprob {
		return minLogprob
	}
	return f
}

// firstLogprob is the inverse of tokenLogs: it finds the chosen token among the
// entries, and takes the n best of all of them as alternatives.
func firstLogprob(t *request.Token, entries []openai.TokenLog, n int) error {
	at := slices.IndexFunc(entries, func(e openai.TokenLog) bool { return e.TokenID == t.ID })
	if at < 0 {
		return openai.Invalid("disaggregated_params.first_gen_log_probs", "first_gen_log_probs has no entry for the first token %d", t.ID)
	}
	t.Logprob = entries[at].Logprob
	if entries[at].Rank != nil {
		t.Rank = *entries[at].Rank
	}
	if n == 0 {
		return nil
	}
	best := slices.Clone(entries)
	slices.SortStableFunc(best, func(a, b openai.TokenLog) int {
		return cmp.Or(cmp.Compare(b.Logprob, a.Logprob), cmp.Compare(a.TokenID, b.TokenID))
	})
	for _, e := range best[:min(n, len(best))] {
		t.Top = append(t.Top, request.TopLogprob{ID: e.TokenID, Logprob: e.Logprob})
	}
	return nil
}

func opaqueOf(d *openai.DisaggParams) ([]byte, error) {
	const param = "disaggregated_params.encoded_opaque_state"
	if d.EncodedOpaqueState == nil || *d.EncodedOpaqueState == "" {
		return nil, openai.Invalid(param, "a generation_only request needs the encoded_opaque_state of the ctx reply, or in generation_first of the ctx worker's /server_info")
	}
	b, err := base64.StdEncoding.DecodeString(*d.EncodedOpaqueState)
	if err != nil {
		return nil, openai.Invalid(param, "encoded_opaque_state is not base64: relay it byte for byte from the ctx reply")
	}
	return b, nil
}
