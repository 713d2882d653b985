package runner

import (
	"log/slog"

	"tandem/engine/model"
	"tandem/engine/request"
	"tandem/engine/tokenizer"
	"tandem/engine/tokenizer/chat"
)

// Text is what turns prompts of a model into tokens.
type Text struct {
	Tokenizer   *tokenizer.Tokenizer
	Template    *chat.Template // nil: the model has none
	Fingerprint string         // of the model
}

// LoadText reads tokenizer and template of a GGUF file or model folder, without its weights.
func LoadText(path string, log *slog.Logger) (Text, error) {
	ck, err := model.Open(path)
	if err != nil {
		return Text{}, err
	}
	var l Loaded
	err = l.text(ck, log)
	out := Text{Tokenizer: l.Tokenizer, Template: l.Template, Fingerprint: ck.Fingerprint()}
	if cerr := ck.Close(); err == nil {
		err = cerr
	}
	return out, err
}

// TextOf makes the text of one of a request's choices by the rule r.Shown, which must be there.
func TextOf(t *tokenizer.Tokenizer, r *request.Request) request.Text {
	return tokenizer.NewMatcher(t.NewStream(r.Prompt, true).Show(r.Shown.Special), tokenizer.MatchOptions{
		Stop: r.Shown.Stop, IncludeStop: r.Shown.IncludeStop, Hidden: r.Shown.Hidden, MinTokens: r.Sampling.MinTokens,
	})
}
