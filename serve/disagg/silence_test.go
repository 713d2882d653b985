package disagg

import (
	"io"
	"net/http"
	"testing"
	"time"

	"tandem/serve/discovery"
)

// stuck takes a request, says something, and then nothing until the caller leaves.
func stuck(began chan<- struct{}, say string) func(int, seen, http.ResponseWriter, *http.Request) {
	return func(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
		if say != "" {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, say)
			w.(http.Flusher).Flush()
		}
		began <- struct{}{}
		<-r.Context().Done()
	}
}

// A gen worker that takes the connection and does not answer costs a part of the admission time and no request.
func TestSilentGenGoesElsewhere(t *testing.T) {
	for name, first := range map[string]string{"nothing is out": "", "the first token is out": `"first_delta":{"text":"A"},`} {
		t.Run(name, func(t *testing.T) {
			began := make(chan struct{}, 1)
			silent, good := newStub(t, discovery.Generation, stuck(began, "")), newStub(t, discovery.Generation, genReply{}.script)
			r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{extra: first}.script)}, []*stub{silent, good},
				withConfig(func(c *Config) { c.AdmissionTimeout = 3 * time.Second }))
			a := r.post(completions, streamed)
			if text, _ := textOf(t, a); text != "ABC" || a.events[len(a.events)-1] != "[DONE]" || a.header.Get(headerGenServer) != good.id && first == "" {
				t.Errorf("%d %v %s", a.status, a.header, a.raw)
			}
			<-began
			if id := <-silent.aborts; id != r.ctx[0].requests()[0].params.DisaggRequestID || len(r.ctx[0].requests()) != 1 {
				t.Errorf("aborted %d, %d ctx requests", id, len(r.ctx[0].requests()))
			}
		})
	}
}

// Legs at a worker that answers neither them nor its probes are given up long before their own limits.
func TestMuteWorkerIsGivenUp(t *testing.T) {
	t.Run("ctx", func(t *testing.T) {
		began := make(chan struct{}, 1)
		mute, good := newStub(t, discovery.Context, stuck(began, "")), newStub(t, discovery.Context, ctxReply{}.script)
		r := newRig(t, []*stub{mute, good}, []*stub{newStub(t, discovery.Generation, genReply{}.script)})
		done := make(chan answer, 1)
		go func() { done <- r.post(completions, hello) }()
		<-began
		a := r.silence(mute, done)
		a.wantOK(t, "ABC")
	})
	t.Run("gen, within a stream", func(t *testing.T) {
		began := make(chan struct{}, 1)
		w := &teller{tokens: []string{"a", "b", "c"}}
		mute := newStub(t, discovery.Generation, stuck(began, ": ids 65\n\ndata: "+chunkText("a")+"\n\n"))
		gens := append([]*stub{mute}, resumers(t, w, 1)...)
		mute.info.Resume = true
		r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, gens)
		done := make(chan answer, 1)
		go func() { done <- r.post(completions, streamed) }()
		<-began
		a := r.silence(mute, done)
		if text, _ := textOf(t, a); text != "abc" || a.events[len(a.events)-1] != "[DONE]" {
			t.Errorf("%s", a.raw)
		}
	})
}

// A worker that has said only who speaks may take its time for the first token, as one that has said nothing.
func TestRoleIsNoFirstToken(t *testing.T) {
	role := `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
	g := newStub(t, discovery.Generation, func(_ int, _ seen, w http.ResponseWriter, r *http.Request) {
		stream(w, role)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-r.Context().Done():
			return
		}
		// At once: behind the first token silence counts.
		_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"content":"A"},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	})
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{g}, withConfig(func(c *Config) { c.StreamIdle = 20 * time.Millisecond }))
	a := r.post(chats, chatStreamed)
	if text, _ := textOf(t, a); text != "A" || a.events[len(a.events)-1] != "[DONE]" {
		t.Errorf("%d %s", a.status, a.raw)
	}
}
