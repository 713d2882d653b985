package tokenizer

import (
	"encoding/json"
	"fmt"
)

type postProcessorJSON struct {
	Type       string                     `json:"type"`
	Processors []json.RawMessage          `json:"processors"`
	Single     []templateItem             `json:"single"`
	Special    map[string]templateSpecial `json:"special_tokens"`
	Cls        json.RawMessage            `json:"cls"` // ["<s>", 0]
	Sep        json.RawMessage            `json:"sep"`
}

type templateItem struct {
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
}

type templateSpecial struct {
	IDs []int32 `json:"ids"`
}

// parsePostProcessor returns the ids to put before and after a single text.
func parsePostProcessor(raw json.RawMessage, depth int) (prefix, suffix []int32, err error) {
	if absent(raw) {
		return nil, nil, nil
	}
	if depth > maxNesting {
		return nil, nil, fmt.Errorf("%w: post_processor nested deeper than %d", ErrMalformed, maxNesting)
	}
	var j postProcessorJSON
	if err := json.Unmarshal(raw, &j); err != nil {
		return nil, nil, fmt.Errorf("%w: post_processor: %w", ErrMalformed, err)
	}
	switch j.Type {
	case "ByteLevel": // offsets only
		return nil, nil, nil
	case "TemplateProcessing":
		return j.template()
	case "BertProcessing", "RobertaProcessing":
		return j.clsSep()
	case "Sequence":
		for _, p := range j.Processors {
			before, after, err := parsePostProcessor(p, depth+1)
			if err != nil {
				return nil, nil, err
			}
			prefix, suffix = append(before, prefix...), append(suffix, after...)
		}
		return prefix, suffix, nil
	}
	return nil, nil, fmt.Errorf("%w: post_processor type %q; known: ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence", ErrUnsupported, j.Type)
}

func (j *postProcessorJSON) template() (prefix, suffix []int32, err error) {
	seen := false
	for _, item := range j.Single {
		switch {
		case item.Sequence != nil:
			if seen {
				return nil, nil, fmt.Errorf("%w: post_processor.single repeats the text", ErrUnsupported)
			}
			seen = true
		case item.SpecialToken != nil:
			s, ok := j.Special[item.SpecialToken.ID]
			if !ok {
				return nil, nil, fmt.Errorf("%w: post_processor names %q but does not define it", ErrMalformed, item.SpecialToken.ID)
			}
			if seen {
				suffix = append(suffix, s.IDs...)
			} else {
				prefix = append(prefix, s.IDs...)
			}
		default:
			return nil, nil, fmt.Errorf("%w: post_processor.single has an unknown item", ErrMalformed)
		}
	}
	return prefix, suffix, nil
}

func (j *postProcessorJSON) clsSep() (prefix, suffix []int32, err error) {
	id := func(raw json.RawMessage) ([]int32, error) {
		var pair []json.RawMessage
		var n int32
		if err := json.Unmarshal(raw, &pair); err != nil || len(pair) != 2 {
			return nil, fmt.Errorf("%w: post_processor: want [token, id], have %.40s", ErrMalformed, raw)
		}
		if err := json.Unmarshal(pair[1], &n); err != nil {
			return nil, fmt.Errorf("%w: post_processor: %w", ErrMalformed, err)
		}
		return []int32{n}, nil
	}
	if prefix, err = id(j.Cls); err != nil {
		return nil, nil, err
	}
	suffix, err = id(j.Sep)
	return prefix, suffix, err
}
