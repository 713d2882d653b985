//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

const guidedSchema = `{"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,"maximum":150},
"kind":{"enum":["cat","dog"]},"tags":{"type":"array","items":{"type":"boolean"},"maxItems":2}},"required":["name","age","kind","tags"],"additionalProperties":false}`

// TestScenario25Guided mixes answers of a schema with free ones. All of the schema
// parse, whichever worker begins them, and the free ones are what they are alone. A
// schema that takes too much ends by itself.
func TestScenario25Guided(t *testing.T) {
	mixed := startWorker(t, "mixed", workerConfig{threads: 1})
	c := startCluster(t, workerConfig{threads: 1}, "")
	var free, all []sample
	for i := range 6 {
		chat := user(fmt.Sprintf("Tell me of animal number %d.", i))
		s := sampleOf(fmt.Sprint("free ", i), chatPath, chat, "max_tokens", 24)
		free = append(free, s)
		all = append(all, s, sampleOf(fmt.Sprint("schema ", i), chatPath, chat, "max_tokens", 160, "temperature", 1, "seed", i+1, "response_format",
			object{"type": "json_schema", "json_schema": object{"name": "animal", "schema": json.RawMessage(guidedSchema)}}))
	}
	all = append(all, sampleOf("regex", textPath, "My number is", "guided_regex", `\d{3}-\d{4}`), sampleOf("choice", textPath, "Is it so?", "guided_choice", []string{"yes", "no"}))
	alone := run(t, free, pass{"alone", mixed.url, false, whole})
	one := run(t, all, pass{"mixed", mixed.url, true, streams})
	two := run(t, all, pass{"split", c.url, true, both})
	if t.Failed() {
		return
	}
	for i, s := range all {
		if !same(one[i], two[i]) {
			t.Errorf("%s: one worker says\n%s, two\n%s", s.name, show(one[i]), show(two[i]))
		}
		if strings.HasPrefix(s.name, "free") && !same(one[i], alone[i/2]) {
			t.Errorf("%s: beside others\n%s, alone\n%s", s.name, show(one[i]), show(alone[i/2]))
		}
		checkGuided(t, s.name, one[i])
	}

	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	deep := strings.Repeat(`{"type":"array","items":`, 5000) + `{}` + strings.Repeat("}", 5000)
	_, err := ask(ctx, c.url, textPath, sampleOf("", textPath, "x", "guided_json", deep).body)
	var refused *statusError
	if !errors.As(err, &refused) || refused.status != 400 || refused.Code == nil || *refused.Code != "invalid_grammar" {
		t.Errorf("a schema that takes too much: %v", err)
	}
	waitClean(t, settleLimit, mixed, c.ctx, c.gen)
}

// checkGuided looks at the text of an answer.
func checkGuided(t *testing.T, name string, r *result) {
	t.Helper()
	var ok bool
	switch {
	case strings.HasPrefix(name, "schema"):
		var v struct {
			Name *string
			Age  *int
			Kind string
			Tags []bool
		}
		d := json.NewDecoder(strings.NewReader(r.Text))
		d.DisallowUnknownFields()
		ok = d.Decode(&v) == nil && v.Name != nil && len([]rune(*v.Name)) <= 12 && v.Age != nil && *v.Age >= 0 && *v.Age <= 150 &&
			(v.Kind == "cat" || v.Kind == "dog") && v.Tags != nil && len(v.Tags) <= 2
	case name == "regex":
		ok = regexp.MustCompile(`^\d{3}-\d{4}$`).MatchString(r.Text)
	case name == "choice":
		ok = r.Text == "yes" || r.Text == "no"
	default:
		return
	}
	if !ok || r.Finish != "stop" {
		t.Errorf("%s: %q, %s", name, r.Text, r.Finish)
	}
}
