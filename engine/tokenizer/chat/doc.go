// Package chat renders a conversation into the prompt text that a model was
// trained on, with the model's own Jinja template, and divides what it answers
// into reasoning, text and calls of functions.
//
// Messages and tools come as raw JSON and keep their key order, because templates
// print them. The package knows nothing of HTTP or of token ids.
//
//	tmpl, err := chat.NewTemplate(source, chat.Options{BOS: "<s>", EOS: "</s>"})
//	text, err := tmpl.Render(chat.Input{Messages: messages, AddGenerationPrompt: true})
package chat
