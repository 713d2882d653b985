// Package tokenizer turns text into token ids and back. It reads the BPE
// tokenizers of Hugging Face tokenizer.json files (byte-level, and byte-fallback
// with a metaspace) and of GGUF metadata, decodes token streams without ever
// showing half a character, and finds stop strings in them.
//
// It knows nothing of requests, models or files: constructors take bytes or
// plain slices. A Tokenizer is immutable after construction and safe for
// concurrent use; a Stream and a Matcher belong to one request.
//
//	tok, err := tokenizer.FromJSON(tokenizerJSON, tokenizerConfigJSON)
//	ids, err := tok.Encode("Hello", tokenizer.EncodeOptions{AddSpecial: true})
//	s := tok.NewStream(ids, true)
//	text := s.Push(next) // "" while a character is incomplete
package tokenizer
