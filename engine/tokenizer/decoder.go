package tokenizer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// decoder is the compiled chain of decoders: how one token's spelling becomes
// bytes, and what happens at the start of the text.
type decoder struct {
	byteLevel    bool
	byteFallback bool
	steps        []func(string) string // per-token rewrites, in order
	stripLeft    int                   // spaces taken off the start of the text
	dropMark     string                // removed from the first token
}

// piece returns the bytes that a spelling decodes to inside a text.
func (d *decoder) piece(spelling string) string {
	if d.byteFallback {
		if b, ok := byteToken(spelling); ok {
			return string([]byte{b})
		}
	}
	for _, f := range d.steps {
		spelling = f(spelling)
	}
	if d.byteLevel {
		if b, ok := byteLevelBytes(spelling); ok {
			return b
		}
	}
	return spelling
}

// byteToken parses "<0xAB>".
func byteToken(s string) (byte, bool) {
	if len(s) != 6 || !strings.HasPrefix(s, "<0x") || s[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(s[3:5], 16, 8)
	return byte(b), err == nil
}

type decoderJSON struct {
	Type          string            `json:"type"`
	Decoders      []json.RawMessage `json:"decoders"`
	Pattern       patternJSON       `json:"pattern"`
	Content       string            `json:"content"`
	Start         int               `json:"start"`
	Stop          int               `json:"stop"`
	Replacement   string            `json:"replacement"`
	PrependScheme string            `json:"prepend_scheme"`
	AddPrefix     *bool             `json:"add_prefix_space"`
}

func parseDecoder(raw json.RawMessage) (decoder, error) {
	var d decoder
	fused := false
	err := d.add(raw, &fused, 0)
	return d, err
}

// add appends one decoder to the chain. fused: all tokens are one text from here.
func (d *decoder) add(raw json.RawMessage, fused *bool, depth int) error {
	if absent(raw) {
		return nil
	}
	if depth > maxNesting {
		return fmt.Errorf("%w: decoder nested deeper than %d", ErrMalformed, maxNesting)
	}
	var j decoderJSON
	if err := json.Unmarshal(raw, &j); err != nil {
		return fmt.Errorf("%w: decoder: %w", ErrMalformed, err)
	}
	switch j.Type {
	case "Sequence":
		for _, sub := range j.Decoders {
			if err := d.add(sub, fused, depth+1); err != nil {
				return err
			}
		}
	case "ByteLevel":
		d.byteLevel, *fused = true, true
	case "ByteFallback":
		d.byteFallback = true
	case "Fuse":
		*fused = true
	case "Strip":
		return d.addStrip(j, *fused)
	case "Replace":
		return d.addReplace(j, *fused)
	case "Metaspace":
		return d.addMetaspace(j)
	default:
		return fmt.Errorf("%w: decoder type %q; known: ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, Sequence", ErrUnsupported, j.Type)
	}
	return nil
}

func (d *decoder) addStrip(j decoderJSON, fused bool) error {
	switch {
	case j.Stop != 0:
		return fmt.Errorf("%w: decoder Strip at the end of the text cannot be streamed", ErrUnsupported)
	case j.Start < 0 || j.Start > 16:
		return fmt.Errorf("%w: decoder Strip.start %d, want 0..16", ErrMalformed, j.Start)
	case fused && j.Content != " ":
		return fmt.Errorf("%w: decoder Strip of %q; known: a space", ErrUnsupported, j.Content)
	case fused:
		d.stripLeft = j.Start
	default:
		d.steps = append(d.steps, func(s string) string {
			for range j.Start {
				s = strings.TrimPrefix(s, j.Content)
			}
			return s
		})
	}
	return nil
}

func (d *decoder) addReplace(j decoderJSON, fused bool) error {
	if j.Pattern.String == nil || *j.Pattern.String == "" {
		return fmt.Errorf("%w: decoder Replace needs a String pattern", ErrUnsupported)
	}
	if fused {
		return fmt.Errorf("%w: decoder Replace over the whole text cannot be streamed", ErrUnsupported)
	}
	d.steps = append(d.steps, func(s string) string {
		return strings.ReplaceAll(s, *j.Pattern.String, j.Content)
	})
	return nil
}

func (d *decoder) addMetaspace(j decoderJSON) error {
	if j.Replacement == "" {
		return fmt.Errorf("%w: decoder Metaspace.replacement is empty", ErrMalformed)
	}
	if j.PrependScheme != "never" && (j.AddPrefix == nil || *j.AddPrefix) {
		d.dropMark = j.Replacement
	}
	d.steps = append(d.steps, func(s string) string {
		return strings.ReplaceAll(s, j.Replacement, " ")
	})
	return nil
}
