package tokenizer

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/dlclark/regexp2/v2"
	"golang.org/x/text/unicode/norm"
)

// normalizer rewrites text before it is cut into pieces.
type normalizer func(string) (string, error)

type normalizerJSON struct {
	Type        string            `json:"type"`
	Normalizers []json.RawMessage `json:"normalizers"`
	Prepend     string            `json:"prepend"`
	Pattern     patternJSON       `json:"pattern"`
	Content     string            `json:"content"`
	StripLeft   bool              `json:"strip_left"`
	StripRight  bool              `json:"strip_right"`
}

// patternJSON is {"String": s} or {"Regex": r}.
type patternJSON struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

// expression returns the pattern as a regular expression.
func (p patternJSON) expression() (string, error) {
	switch {
	case p.Regex != nil:
		return *p.Regex, nil
	case p.String != nil:
		return regexp.QuoteMeta(*p.String), nil
	}
	return "", fmt.Errorf("%w: pattern has neither String nor Regex", ErrMalformed)
}

const maxNesting = 16 // of Sequence in Sequence

func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// parseNormalizer returns nil for "no normaliser".
func parseNormalizer(raw json.RawMessage, depth int) (normalizer, error) {
	if absent(raw) {
		return nil, nil
	}
	if depth > maxNesting {
		return nil, fmt.Errorf("%w: normalizer nested deeper than %d", ErrMalformed, maxNesting)
	}
	var j normalizerJSON
	if err := json.Unmarshal(raw, &j); err != nil {
		return nil, fmt.Errorf("%w: normalizer: %w", ErrMalformed, err)
	}
	switch j.Type {
	case "NFC":
		return form(norm.NFC), nil
	case "NFD":
		return form(norm.NFD), nil
	case "NFKC":
		return form(norm.NFKC), nil
	case "NFKD":
		return form(norm.NFKD), nil
	case "Lowercase":
		return plain(lower), nil
	case "Strip":
		return stripNormalizer(j.StripLeft, j.StripRight), nil
	case "StripAccents":
		return plain(stripMarks), nil
	case "Prepend":
		return plain(func(s string) string {
			if s == "" {
				return s
			}
			return j.Prepend + s
		}), nil
	case "Replace":
		return replaceNormalizer(j)
	case "Sequence":
		return sequenceNormalizer(j.Normalizers, depth)
	}
	return nil, fmt.Errorf("%w: normalizer type %q; known: NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, Sequence", ErrUnsupported, j.Type)
}

// lower maps each character on its own, as the reference does; U+0130 is the one
// whose full lower case has two characters.
func lower(s string) string {
	return strings.ToLower(strings.ReplaceAll(s, "\u0130", "i\u0307"))
}

func plain(f func(string) string) normalizer {
	return func(s string) (string, error) { return f(s), nil }
}

func stripNormalizer(left, right bool) normalizer {
	return plain(func(s string) string {
		if left {
			s = strings.TrimLeftFunc(s, unicode.IsSpace)
		}
		if right {
			s = strings.TrimRightFunc(s, unicode.IsSpace)
		}
		return s
	})
}

func stripMarks(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.M, r) {
			return -1
		}
		return r
	}, s)
}

func replaceNormalizer(j normalizerJSON) (normalizer, error) {
	if j.Pattern.String != nil {
		if *j.Pattern.String == "" {
			return nil, fmt.Errorf("%w: Replace normalizer with an empty pattern", ErrMalformed)
		}
		return plain(func(s string) string {
			return strings.ReplaceAll(s, *j.Pattern.String, j.Content)
		}), nil
	}
	expr, err := j.Pattern.expression()
	if err != nil {
		return nil, err
	}
	re, err := regexp2.Compile(expr, regexp2.OptionMaxBacktrackingStackSize(maxBacktrackSlots))
	if err != nil {
		return nil, fmt.Errorf("%w: Replace pattern %q: %w", ErrMalformed, expr, err)
	}
	return func(s string) (string, error) {
		out, err := re.ReplaceFunc(s, func(regexp2.Match) string { return j.Content }, -1, -1)
		if err != nil {
			return "", patternError(err)
		}
		return out, nil
	}, nil
}

func sequenceNormalizer(parts []json.RawMessage, depth int) (normalizer, error) {
	var all []normalizer
	for _, raw := range parts {
		n, err := parseNormalizer(raw, depth+1)
		if err != nil {
			return nil, err
		}
		if n != nil {
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return func(s string) (string, error) {
		var err error
		for _, n := range all {
			if s, err = n(s); err != nil {
				return "", err
			}
		}
		return s, nil
	}, nil
}
