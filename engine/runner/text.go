package runner

import (
	"log/slog"

	"tandem/engine/model"
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
