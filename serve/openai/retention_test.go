package openai

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

func TestRetention(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{}`, `{[] none}`},
		{`{"token_range_retention_configs":[],"decode_retention_priority":0}`, `{[] {0 0 0 0s}}`},
		{`{"decode_retention_priority":100,"decode_duration_ms":1500}`, `{[] {0 0 100 1.5s}}`},
		{
			`{"token_range_retention_configs":[{"token_start":5,"token_end":null,"priority":1},{"token_start":0,"token_end":5,"priority":100,"duration_ms":10}],"decode_retention_priority":null}`,
			fmt.Sprintf(`{[{0 5 100 10ms} {5 %d 1 0s}] none}`, math.MaxInt32),
		},
	} {
		r, err := DecodeRequest(Chat, []byte(chatBody(`"kv_cache_retention_config":`+c.in)))
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		decode := "none"
		if r.Retention.Decode != nil {
			decode = fmt.Sprint(*r.Retention.Decode)
		}
		if got := fmt.Sprintf("{%v %s}", r.Retention.Ranges, decode); got != c.want {
			t.Errorf("%s: %s, want %s", c.in, got, c.want)
		}
	}
}

func TestBadRetention(t *testing.T) {
	const p, at = "kv_cache_retention_config", "kv_cache_retention_config.token_range_retention_configs"
	ranges := func(list string) string { return `{"token_range_retention_configs":[` + list + `]}` }
	for _, c := range []struct{ in, param, text string }{
		{`[]`, p, "object"},
		{`{"ranges":[]}`, p + ".ranges", "token_range_retention_configs"},
		{`{"token_range_retention_configs":{}}`, at, "list"},
		{`{"decode_retention_priority":101}`, p + ".decode_retention_priority", "100"},
		{`{"decode_retention_priority":-1}`, p + ".decode_retention_priority", "0"},
		{`{"decode_duration_ms":5}`, p + ".decode_duration_ms", "decode_retention_priority"},
		{`{"decode_retention_priority":1,"decode_duration_ms":0}`, p + ".decode_duration_ms", "at least 1"},
		{ranges(`7`), at + "[0]", "object"},
		{ranges(`{"priority":1}`), at + "[0].token_start", "needs token_start"},
		{ranges(`{"token_start":1}`), at + "[0].priority", "needs a priority"},
		{ranges(`{"token_start":-1,"priority":1}`), at + "[0].token_start", "at least 0"},
		{ranges(`{"token_start":3,"token_end":3,"priority":1}`), at + "[0].token_end", "above token_start"},
		{ranges(`{"token_start":3,"priority":1.5}`), at + "[0].priority", "whole number"},
		{ranges(`{"token_start":3,"priority":1,"until":5}`), at + "[0].until", "duration_ms"},
		{ranges(`{"token_start":4,"token_end":9,"priority":1},{"token_start":0,"token_end":5,"priority":2}`), at + "[0]", "overlap"},
		{ranges(`{"token_start":0,"priority":1},{"token_start":5,"token_end":6,"priority":2}`), at + "[1]", "overlap"},
		{ranges(strings.TrimSuffix(strings.Repeat(`{"token_start":0,"priority":1},`, MaxRetentionRanges+1), ",")), at, "limit"},
	} {
		_, err := DecodeRequest(Completion, []byte(textBody(`"kv_cache_retention_config":`+c.in)))
		var e *Error
		if !errors.As(err, &e) || e.Status != 400 || e.Param != c.param || !strings.Contains(e.Message, c.text) {
			t.Errorf("%.80s: %v, want %s about %q", c.in, err, c.param, c.text)
		}
	}
}

func TestRetentionRangesTouch(t *testing.T) {
	r, err := DecodeRequest(Completion, []byte(textBody(`"kv_cache_retention_config":{"token_range_retention_configs":[{"token_start":0,"token_end":4,"priority":9},{"token_start":4,"token_end":8,"priority":8,"duration_ms":1}]}`)))
	if err != nil || len(r.Retention.Ranges) != 2 || r.Retention.Ranges[1].For != time.Millisecond {
		t.Fatal(r, err)
	}
}
