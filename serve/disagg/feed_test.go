package disagg

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/engine/blockhash"
	"tandem/engine/tokenizer"
	"tandem/serve/discovery"
	"tandem/serve/router"
)

// cache is the scripted index of a stub: a stream is cut when the script changes hands.
type cache struct {
	mu     sync.Mutex
	list   []string
	stream bool // else POST drains
	wake   chan struct{}
	began  int // streams so far
}

func (c *cache) add(events ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, events...)
	close(c.wake)
	c.wake = make(chan struct{})
}

func (c *cache) serve(w http.ResponseWriter, r *http.Request) {
	if (r.Method == http.MethodGet) != c.stream {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Method == http.MethodPost {
		_, _ = fmt.Fprintf(w, "[%s]", strings.Join(c.list, ","))
		c.list = nil
		return
	}
	c.began++
	w.Header().Set("Content-Type", "text/event-stream")
	for sent := 0; ; {
		for ; sent < len(c.list); sent++ {
			_, _ = io.WriteString(w, ": x\n\ndata: "+c.list[sent]+"\n\n")
		}
		w.(http.Flusher).Flush()
		wake := c.wake
		c.mu.Unlock()
		select {
		case <-wake:
		case <-r.Context().Done():
		}
		c.mu.Lock()
		if r.Context().Err() != nil {
			return
		}
	}
}

func created(id int) string {
	return fmt.Sprintf(`{"event_id":%d,"attention_dp_rank":0,"data":{"type":"created","hash_algo":"tandem-kv1"}}`, id)
}

func storedEvent(id int, blocks []uint64) string {
	var list []string
	for _, b := range blocks {
		list = append(list, fmt.Sprintf(`{"block_hash":%d}`, b))
	}
	return fmt.Sprintf(`{"event_id":%d,"attention_dp_rank":0,"data":{"type":"stored","blocks":[%s]}}`, id, strings.Join(list, ","))
}

// wordBlocks are the full blocks of 4 of a prompt of n ids 1, 2, 3 …, and the prompt as JSON.
func wordBlocks(n int) (blocks []uint64, prompt string) {
	h := blockhash.Root("m@1", "", "")
	var ids []int32
	for i := range n {
		ids = append(ids, int32(i+1))
	}
	for b := ids; len(b) > 4; b = b[4:] {
		h = blockhash.Next(h, b[:4])
		blocks = append(blocks, h.Wire())
	}
	data, _ := json.Marshal(ids)
	return blocks, string(data)
}

func kvRig(t *testing.T, stream bool, opts ...rigOption) (*rig, []*cache) {
	t.Helper()
	var ctx []*stub
	var caches []*cache
	for range 2 {
		st, c := newStub(t, discovery.Context, ctxReply{}.script), &cache{stream: stream, wake: make(chan struct{}), list: []string{created(0)}}
		st.info.Namespace, st.info.TokensPerBlock, st.info.HashAlgo, st.info.KVEvents = "m@1", 4, router.HashAlgo, true
		st.info.MaxBatchSize, st.events = 8, c.serve
		ctx, caches = append(ctx, st), append(caches, c)
	}
	off := false
	kv := router.NewKVAware(router.Config{Type: router.KindKVAware, Backfill: &off})
	opts = append([]rigOption{withRouters(kv, router.NewRoundRobin())}, opts...)
	return newRig(t, ctx, []*stub{newStub(t, discovery.Generation, genReply{}.script)}, opts...), caches
}

// eventually waits for something that other goroutines bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestFeedsTellWhereBlocksAre(t *testing.T) {
	blocks, prompt := wordBlocks(13)
	for name, streamed := range map[string]bool{"stream": true, "poll": false} {
		t.Run(name, func(t *testing.T) {
			r, caches := kvRig(t, streamed)
			at := func() string {
				a := r.post(completions, `{"model":"tiny","max_tokens":3,"prompt":`+prompt+`}`)
				a.wantOK(t, "ABC")
				return a.header.Get("X-Disagg-Ctx-Server")
			}
			stays := func(i int) func() bool {
				return func() bool {
					for range 3 {
						if at() != r.ctx[i].id {
							return false
						}
					}
					return true
				}
			}
			caches[1].add(created(5), storedEvent(6, blocks))
			eventually(t, "requests go where the blocks are", stays(1))
			caches[0].add(created(0), storedEvent(1, blocks))
			caches[1].add(`{"event_id":7,"attention_dp_rank":0,"data":{"type":"removed","block_hashes":[` + fmt.Sprint(blocks[0]) + `]}}`)
			eventually(t, "requests follow the blocks", stays(0))
			if !streamed {
				return
			}
			caches[0].add(storedEvent(9, blocks)) // some were lost
			eventually(t, "the index is asked for again", func() bool {
				caches[0].mu.Lock()
				defer caches[0].mu.Unlock()
				return caches[0].began > 1
			})
		})
	}
}

func TestFeedEventsThatMakeNoSense(t *testing.T) {
	in := discovery.Instance{ID: "a", Info: &discovery.ServerInfo{Incarnation: "i"}}
	for text, want := range map[string]error{
		`{"data":{"type":"created","hash_algo":"md5"}}`:                        errForeign,
		`{"data":{"type":"created","incarnation":"j"}}`:                        errOutOfStep,
		`{"data":{"type":"stored"}}`:                                           errOutOfStep,
		`{"attention_dp_rank":-1,"data":{"type":"created"}}`:                   errOutOfStep,
		`{"attention_dp_rank":99999999,"data":{"type":"created"}}`:             errOutOfStep,
		`{"event_id":3,"data":{"type":"created","incarnation":"i","x":[1,2]}}`: nil,
	} {
		var ev feedEvent
		if err := json.Unmarshal([]byte(text), &ev); err != nil {
			t.Fatal(err)
		}
		if err := ev.tell(router.NewKVAware(router.Config{}), in); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", text, err, want)
		}
	}
}

// lines renders a chat as its JSON.
type lines struct{ err error }

func (l lines) Render(messages, _, _ json.RawMessage) (string, error) { return string(messages), l.err }

func letters(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	vocab := map[string]int{}
	for c := '!'; c <= '~'; c++ {
		vocab[string(c)] = int(c)
	}
	file, _ := json.Marshal(map[string]any{
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
		"decoder":       map[string]any{"type": "ByteLevel"},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
	})
	tok, err := tokenizer.FromJSON(file, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// Ids that the frontend makes go to the ctx worker; what it cannot tell is left to the worker.
func TestFrontendTokenises(t *testing.T) {
	for _, tc := range []struct {
		name, path, body string
		prompts          Prompts
		member, want     string
	}{
		{"completion", completions, `{"model":"tiny","prompt":"abc","max_tokens":3}`, Prompts{}, "prompt", "[97,98,99]"},
		{"chat", "/v1/chat/completions", `{"model":"tiny","messages":[],"max_tokens":3}`, Prompts{Template: lines{}}, "prompt_token_ids", ""},
		{"chat with messages", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":3}`, Prompts{Template: lines{}}, "prompt_token_ids", "[91,123,"},
		{"no template", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":3}`, Prompts{}, "prompt_token_ids", ""},
		{"template refuses", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":3}`, Prompts{Template: lines{io.EOF}}, "prompt_token_ids", ""},
		{"another model", completions, `{"model":"tiny","prompt":"abc","max_tokens":3}`, Prompts{Fingerprint: "other"}, "prompt", `"abc"`},
		{"the same model", completions, `{"model":"tiny","prompt":"abc","max_tokens":3}`, Prompts{Fingerprint: "f"}, "prompt", "[97,98,99]"},
		{"client's ids", completions, `{"model":"tiny","prompt":[5,6],"max_tokens":3}`, Prompts{}, "prompt", "[5,6]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.prompts.Tokenizer = letters(t)
			r, _ := kvRig(t, true, func(_ *rig, p *Parts) { p.Prompts = &tc.prompts })
			r.post(tc.path, tc.body)
			for _, st := range r.ctx {
				for _, q := range st.requests() {
					if got := string(q.body[tc.member]); !strings.HasPrefix(got, tc.want) || tc.want == "" && got != "" {
						t.Errorf("ctx got %s %s, want %s", tc.member, got, tc.want)
					}
				}
			}
		})
	}
}
