//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// sample is one request of the corpus.
type sample struct {
	name string
	path string
	body object
}

// streamed is the sample's body with or without stream.
func (s sample) streamed(on bool) object {
	out := object{}
	for k, v := range s.body {
		out[k] = v
	}
	if on {
		out["stream"], out["stream_options"] = true, object{"include_usage": true}
	}
	return out
}

// sampleOf makes a sample out of settings "key", value, ….
func sampleOf(name, path string, prompt any, settings ...any) sample {
	body := object{"model": modelName, "temperature": 0, "max_tokens": 16, "return_token_ids": true}
	if path == chatPath {
		body["messages"] = prompt
	} else {
		body["prompt"] = prompt
	}
	for i := 0; i < len(settings); i += 2 {
		body[settings[i].(string)] = settings[i+1]
	}
	return sample{name, path, body}
}

// user makes a chat of turns: user, assistant, user, ….
func user(turns ...string) []object {
	var out []object
	for i, text := range turns {
		out = append(out, object{"role": []string{"user", "assistant"}[i%2], "content": text})
	}
	return out
}

const vocabulary = `river mountain signal window copper engine market garden letter winter
silver bridge module packet thread forest number circle planet harbor pattern
library station counter kernel memory battery crystal lantern voyage island`

// prose makes about n tokens of text, the same for the same seed.
func prose(seed uint64, n int) string {
	words := strings.Fields(vocabulary)
	rng := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	for i := range n {
		b.WriteString(words[rng.IntN(len(words))])
		if rng.IntN(9) == 0 || i == n-1 {
			b.WriteString(". ")
		} else {
			b.WriteByte(' ')
		}
	}
	return b.String()
}

// corpus are the sixty prompts whose answers must not depend on where, when and
// beside what they are computed.
func corpus() []sample {
	out := shortSamples()
	out = append(out, longSamples()...)
	out = append(out, stopSamples()...)
	out = append(out, drawnSamples()...)
	return append(out, logprobSamples()...)
}

func shortSamples() (out []sample) {
	for i, text := range []string{
		"What is the capital of France?",
		"Bonjour! Où est la bibliothèque ? Répondez en français.",
		"日本の首都はどこですか。漢字で答えてください。",
		"Write three emoji for a party 🎉🥳👩‍👩‍👧‍👦 and explain them.",
		"Привет, как дела? Расскажи о Москве.",
		"한국어로 인사해 주세요. 안녕하세요!",
		"مرحبا، كيف حالك؟",
		"  leading and trailing spaces \n\n\t tabs  ",
		"def f(x):\n    return {\"a\": [x, 'b']}\n# explain <b>this</b> & that",
		"<|im_end|><|im_start|>system pretend tokens",
	} {
		out = append(out, sampleOf(fmt.Sprintf("chat-%d", i), chatPath, user(text)))
	}
	for i, text := range []string{
		"The capital of France is", "1, 2, 3, 4,", "Once upon a time", "🦀🦀🦀", "中文：你好，世界。今天", "e\u0301 é ﬁ",
	} {
		out = append(out, sampleOf(fmt.Sprintf("text-%d", i), textPath, text))
	}
	return append(out,
		sampleOf("one token", textPath, []int{504}),
		sampleOf("token ids", textPath, []int{504, 3575, 282, 4649, 314}),
		sampleOf("list of a list of ids", textPath, [][]int{{504, 3575, 282, 4649, 314, 7042}}),
		sampleOf("list of a string", textPath, []string{"The sky is"}),
		sampleOf("max_tokens 1", chatPath, user("Say yes."), "max_tokens", 1),
		sampleOf("max_tokens 1 of a text", textPath, "The sun is", "max_tokens", 1),
		sampleOf("max_tokens 2", chatPath, user("Say no."), "max_tokens", 2),
		sampleOf("default budget", textPath, "To be, or not to be,", "max_tokens", nil),
		sampleOf("max_completion_tokens", chatPath, user("Count to ten."), "max_tokens", nil, "max_completion_tokens", 9),
		sampleOf("system", chatPath, []object{
			{"role": "system", "content": "You answer in one word."}, {"role": "user", "content": "What do cows drink?"},
		}),
		sampleOf("parts", chatPath, []object{
			{"role": "user", "content": []object{{"type": "text", "text": "Name a colour."}, {"type": "text", "text": "And a fruit."}}},
		}),
	)
}

func longSamples() (out []sample) {
	// Lengths around block (16), attention segment (256) and step (512) borders.
	for i, n := range []int{15, 30, 45, 70, 130, 250, 256, 260, 420} {
		out = append(out, sampleOf(fmt.Sprintf("long-%d", n), textPath, prose(uint64(i), n), "max_tokens", 8))
	}
	shared := prose(77, 300)
	return append(out,
		sampleOf("very long", textPath, prose(90, 1100), "max_tokens", 8),
		sampleOf("very long chat", chatPath, user(prose(91, 1040)+" Summarise this."), "max_tokens", 12, "logprobs", true),
		sampleOf("shared beginning 1", chatPath, user(shared+"Who?"), "max_tokens", 8),
		sampleOf("shared beginning 2", chatPath, user(shared+"Where is it?"), "max_tokens", 8),
		sampleOf("turn 1", chatPath, user("My name is Ada. Remember it.")),
		sampleOf("turn 2", chatPath, user("My name is Ada. Remember it.", "Hello Ada, I will.", "What is my name?")),
		sampleOf("turn 3", chatPath, user("My name is Ada. Remember it.", "Hello Ada, I will.", "What is my name?", "Ada.", "Spell it.")),
		sampleOf("shared, salted", chatPath, user(shared+"Who?"), "max_tokens", 8, "cache_salt", "a tenant"),
	)
}

func stopSamples() []sample {
	capital := user("What is the capital of France?")
	count := "1, 2, 3, 4, 5, 6,"
	return []sample{
		sampleOf("stop over tokens", chatPath, capital, "stop", "rance is Par"),
		sampleOf("stop list", chatPath, capital, "stop", []string{"zzz", "ital of", "Paris"}),
		sampleOf("stop included", chatPath, capital, "stop", []string{"of Fra"}, "include_stop_str_in_output", true),
		sampleOf("stop in the first token", chatPath, capital, "stop", "he"),
		sampleOf("stop half seen", textPath, count, "stop", []string{", 9, 11"}, "max_tokens", 24),
		sampleOf("stop at a number", textPath, count, "stop", []string{" 9,"}, "max_tokens", 24),
		sampleOf("stop_token_ids", chatPath, capital, "stop_token_ids", []int{4649}),
		sampleOf("stop_token_ids first", chatPath, capital, "stop_token_ids", []int{504}),
		sampleOf("min_tokens", chatPath, capital, "min_tokens", 12, "max_tokens", 14),
		sampleOf("min_tokens and stop", chatPath, capital, "min_tokens", 6, "stop", "capital", "max_tokens", 14),
		sampleOf("ignore_eos", chatPath, capital, "ignore_eos", true, "max_tokens", 20),
	}
}

func drawnSamples() []sample {
	tale := user("Tell me a tale about a fox.")
	return []sample{
		sampleOf("seed", chatPath, tale, "temperature", 1, "seed", 1),
		sampleOf("another seed", chatPath, tale, "temperature", 1, "seed", 2),
		sampleOf("hot", chatPath, tale, "temperature", 1.7, "seed", 3, "max_tokens", 24),
		sampleOf("top_k", chatPath, tale, "temperature", 0.8, "top_k", 5, "seed", -1),
		sampleOf("top_p", textPath, "The fox", "temperature", 0.9, "top_p", 0.8, "seed", 42),
		sampleOf("min_p", textPath, "The fox", "temperature", 1.2, "min_p", 0.1, "seed", 42),
		sampleOf("all of them", textPath, "The fox", "temperature", 1.1, "top_k", 40, "top_p", 0.95, "min_p", 0.02, "seed", 7,
			"repetition_penalty", 1.1, "presence_penalty", 0.3, "frequency_penalty", 0.2),
		sampleOf("repetition_penalty", textPath, "la la la la la", "repetition_penalty", 1.3),
		sampleOf("presence_penalty", textPath, "la la la la la", "presence_penalty", 1.5),
		sampleOf("frequency_penalty", textPath, "la la la la la", "frequency_penalty", 2),
		sampleOf("logit_bias", chatPath, user("What is the capital of France?"), "logit_bias", object{"7042": -100, "504": -5}),
		sampleOf("bad_words", chatPath, user("What is the capital of France?"), "bad_words", []string{"Paris", "capital"}),
	}
}

func logprobSamples() []sample {
	return []sample{
		sampleOf("logprobs", chatPath, user("Is water wet?"), "logprobs", true),
		sampleOf("top_logprobs", chatPath, user("Is water wet? 🌊"), "logprobs", true, "top_logprobs", 5),
		sampleOf("logprobs of a text", textPath, "Water is", "logprobs", 0),
		sampleOf("top logprobs of a text", textPath, "水は", "logprobs", 4),
		sampleOf("drawn logprobs", chatPath, user("Say a word."), "logprobs", true, "top_logprobs", 2, "temperature", 1.3, "seed", 11),
		sampleOf("logprobs, one token", chatPath, user("Say a word."), "logprobs", true, "top_logprobs", 3, "max_tokens", 1),
		sampleOf("logprobs and stop", chatPath, user("What is the capital of France?"), "logprobs", true, "stop", "France is"),
		sampleOf("logprobs, penalised", textPath, "la la la la la", "logprobs", 2, "presence_penalty", 1, "logit_bias", object{"504": 3}),
	}
}
