package tokenizer

import (
	"encoding/json"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// gpt2Pattern is what ByteLevel splits with unless told not to.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

type preTokenizerJSON struct {
	Type           string            `json:"type"`
	PreTokenizers  []json.RawMessage `json:"pretokenizers"`
	Pattern        json.RawMessage   `json:"pattern"`
	Behavior       string            `json:"behavior"`
	Invert         bool              `json:"invert"`
	Individual     bool              `json:"individual_digits"`
	AddPrefixSpace bool              `json:"add_prefix_space"`
	UseRegex       *bool             `json:"use_regex"`
	Replacement    string            `json:"replacement"`
	PrependScheme  string            `json:"prepend_scheme"`
	Split          *bool             `json:"split"`
	Delimiter      string            `json:"delimiter"`
}

// preTokenizer is the compiled chain.
type preTokenizer struct {
	splitters []splitter
	byteLevel bool // the vocabulary spells bytes
}

func parsePreTokenizer(raw json.RawMessage) (preTokenizer, error) {
	var p preTokenizer
	return p, p.add(raw, 0)
}

// add appends one pre-tokenizer to the chain.
func (p *preTokenizer) add(raw json.RawMessage, depth int) error {
	if absent(raw) {
		return nil
	}
	if depth > maxNesting {
		return fmt.Errorf("%w: pre_tokenizer nested deeper than %d", ErrMalformed, maxNesting)
	}
	var j preTokenizerJSON
	if err := json.Unmarshal(raw, &j); err != nil {
		return fmt.Errorf("%w: pre_tokenizer: %w", ErrMalformed, err)
	}
	if p.byteLevel && j.Type != "Sequence" {
		return fmt.Errorf("%w: pre_tokenizer %q after ByteLevel", ErrUnsupported, j.Type)
	}
	if j.Type == "Sequence" {
		for _, sub := range j.PreTokenizers {
			if err := p.add(sub, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	s, err := j.build(p)
	p.splitters = append(p.splitters, s...)
	return err
}

// build returns the splitters of one pre-tokenizer that is no Sequence.
func (j *preTokenizerJSON) build(p *preTokenizer) ([]splitter, error) {
	switch j.Type {
	case "ByteLevel":
		p.byteLevel = true
		return j.byteLevel()
	case "Split":
		return j.split()
	case "Digits":
		b := contiguous
		if j.Individual {
			b = isolated
		}
		return []splitter{&runeSplit{unicode.IsNumber, b}}, nil
	case "Punctuation":
		if j.Behavior == "" {
			j.Behavior = "Isolated"
		}
		b, err := parseBehaviour(j.Behavior)
		return []splitter{&runeSplit{isPunctuation, b}}, err
	case "WhitespaceSplit":
		return []splitter{&runeSplit{unicode.IsSpace, removed}}, nil
	case "Whitespace":
		return patternSplit(`\w+|[^\w\s]+`, removed, true)
	case "CharDelimiterSplit":
		r, n := utf8.DecodeRuneInString(j.Delimiter)
		if n == 0 || n != len(j.Delimiter) {
			return nil, fmt.Errorf("%w: CharDelimiterSplit.delimiter %q is not one character", ErrMalformed, j.Delimiter)
		}
		return []splitter{&runeSplit{func(c rune) bool { return c == r }, removed}}, nil
	case "Metaspace":
		return j.metaspace()
	}
	return nil, fmt.Errorf("%w: pre_tokenizer type %q; known: ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit, Metaspace, Sequence", ErrUnsupported, j.Type)
}

func patternSplit(pattern string, b behaviour, invert bool) ([]splitter, error) {
	s, err := newRegexSplit(pattern, b, invert)
	if err != nil {
		return nil, err
	}
	return []splitter{s}, nil
}

func (j *preTokenizerJSON) byteLevel() ([]splitter, error) {
	var out []splitter
	if j.AddPrefixSpace {
		out = append(out, prefixSpace{})
	}
	if j.UseRegex != nil && !*j.UseRegex {
		return out, nil
	}
	s, err := patternSplit(gpt2Pattern, isolated, false)
	return append(out, s...), err
}

func (j *preTokenizerJSON) split() ([]splitter, error) {
	var pattern patternJSON
	if err := json.Unmarshal(j.Pattern, &pattern); err != nil {
		return nil, fmt.Errorf("%w: Split.pattern: %w", ErrMalformed, err)
	}
	expr, err := pattern.expression()
	if err != nil {
		return nil, fmt.Errorf("pre_tokenizer Split: %w", err)
	}
	b, err := parseBehaviour(j.Behavior)
	if err != nil {
		return nil, err
	}
	return patternSplit(expr, b, j.Invert)
}

func (j *preTokenizerJSON) metaspace() ([]splitter, error) {
	if utf8.RuneCountInString(j.Replacement) != 1 {
		return nil, fmt.Errorf("%w: Metaspace.replacement %q is not one character", ErrMalformed, j.Replacement)
	}
	m := &metaspace{mark: j.Replacement, cut: j.Split == nil || *j.Split}
	switch j.PrependScheme {
	case "always":
		m.always = true
	case "first":
		m.once = true
	case "never":
	case "": // older files
		m.always = j.AddPrefixSpace
	default:
		return nil, fmt.Errorf("%w: Metaspace.prepend_scheme %q; known: always, first, never", ErrUnsupported, j.PrependScheme)
	}
	return []splitter{m}, nil
}
