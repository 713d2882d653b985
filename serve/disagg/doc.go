// Package disagg is the frontend: for each client request it runs a ctx leg and then a gen leg on workers, relays the
// answer, and sees to it that whatever happens nothing stays behind on either side.
//
// It owns the plan of a request, retries, hand-overs and aborts. It knows nothing of engines, tokenizers or YAML: workers
// are HTTP servers from serve/discovery, chosen by serve/router. Example:
//
//	s, err := disagg.New(disagg.DefaultConfig(), disagg.Parts{Registry: reg, Context: rr, Generation: rr2, ...})
//	http.Serve(listener, s.Handler())
package disagg
