// Package worker is the network face of one engine process: the OpenAI
// endpoints with their internal additions for ctx and gen legs, health and load
// reports, and aborts. It turns a wire request into an engine request and the
// engine's outputs into a reply or a stream of events.
//
// It knows nothing of scheduling, blocks or devices, and nothing of frontends
// beyond the headers they send. One Server serves one engine:
//
//	s := worker.New(worker.Config{...})
//	go http.Serve(listener, s)                  // 503 while the model loads
//	s.Attach(worker.Backend{Engine: worker.FromRunner(e), Tokenizer: tok, Template: tpl})
package worker
