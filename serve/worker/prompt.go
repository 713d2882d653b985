package worker

import (
	"tandem/engine/request"
	"tandem/serve/openai"
)

// truncate keeps the end of a prompt that truncate_prompt_tokens asks for.
func (j *job) truncate(ids []int32) []int32 {
	keep := j.wire.TruncatePrompt
	if keep < 0 {
		keep = max(1, j.info.MaxSeqLen-min(max(1, j.wire.MaxTokensOr(1)), j.info.MaxSeqLen-1))
	}
	if keep == 0 || keep >= len(ids) {
		return ids
	}
	return ids[len(ids)-keep:]
}

// echoed is the prompt as the answer begins with it, empty without echo.
func (j *job) echoed() string {
	if !j.wire.Echo {
		return ""
	}
	if j.wire.Prompt.IDs == nil && j.wire.PromptIDs == nil && j.wire.TruncatePrompt == 0 {
		return j.wire.Prompt.Text
	}
	var text []byte
	for _, id := range j.req.Prompt {
		if !j.Tokenizer.IsSpecial(id) {
			text = append(text, j.Tokenizer.TokenBytes(id)...)
		}
	}
	return string(text)
}

// scored are all tokens of the prompt; the first has no log-probability.
func (j *job) scored() []request.Token {
	return append([]request.Token{{ID: j.req.Prompt[0]}}, j.scores...)
}

// prompt are the prompt's entries in the log-probabilities of an answer that begins
// with it.
func (l *logprobs) prompt() []openai.TokenLogprob {
	entries := l.tokens(l.job.scored())
	entries[0].Null, entries[0].Top = true, nil
	for i := range entries { // prompt_logprobs may have asked for more
		entries[i].Top = entries[i].Top[:min(len(entries[i].Top), l.job.wire.Logprobs)]
	}
	return entries
}

// promptLogprobs is prompt_logprobs of the reply.
func (j *job) promptLogprobs() []byte {
	all := j.scored()
	l := logprobs{job: j}
	entries, ranks := l.tokens(all), make([]int, len(all))
	entries[0].Null = true
	for i := range all {
		ranks[i] = all[i].Rank
		entries[i].Top = entries[i].Top[:min(len(entries[i].Top), j.wire.PromptLogprobs)]
	}
	return openai.AppendPromptLogprobs(nil, entries, ranks)
}
