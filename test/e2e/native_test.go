//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// What a worker of TensorRT-LLM knows. It refuses any other member.
var (
	nativeBody = []string{
		"model", "prompt", "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options", "temperature", "top_p",
		"logprobs", "seed", "stop", "disaggregated_params", "conversation_params", "prompt_token_ids", "prompt_token_ids_b64", "cache_salt",
	}
	nativeParams = []string{
		"request_type", "schedule_style", "disagg_request_id", "ctx_request_id", "ctx_dp_rank", "ctx_info_endpoint",
		"encoded_opaque_state", "first_gen_tokens", "first_gen_log_probs", "first_gen_logits", "draft_tokens", "ctx_usage",
		"return_prompt_token_ids_b64", "resolved_thinking",
	}
)

// strictly answers by run unless the leg has members that the engine does not know.
func strictly(run script) script {
	return func(c *call) {
		for name := range c.body {
			if !slices.Contains(nativeBody, name) {
				c.status(http.StatusBadRequest, fmt.Sprintf(`{"object":"error","message":"extra member %s","type":"BadRequestError","param":null,"code":400}`, name))
				return
			}
		}
		var params map[string]json.RawMessage
		_ = json.Unmarshal(c.body["disaggregated_params"], &params)
		for name := range params {
			if !slices.Contains(nativeParams, name) {
				c.status(http.StatusBadRequest, fmt.Sprintf(`{"object":"error","message":"extra member disaggregated_params.%s","type":"BadRequestError","param":null,"code":400}`, name))
				return
			}
		}
		run(c)
	}
}

// TestNativeWorkers drives workers that follow the wire of TensorRT-LLM to the
// letter: no role, no fingerprint, no model list but the name, empty health,
// neither abort nor block counts, null for what is absent, an error of another shape.
func TestNativeWorkers(t *testing.T) {
	t.Parallel()
	for _, finish := range []string{"not_finished", "length"} { // newer ones, older ones
		t.Run(finish, func(t *testing.T) {
			r := newRig(t, rigOf{ctx: 2, gen: 2, before: func(r *rig) {
				for _, s := range append(slices.Clone(r.ctx), r.gen...) {
					s.native = true
					s.info = object{}
				}
				for _, s := range r.ctx {
					s.info["disaggregated_params"] = object{"ctx_info_endpoint": []string{"tcp://10.0.0.1:5000"}, "encoded_opaque_state": nil}
					s.setScript(strictly(ctxReply{
						finish: finish,
						choice: `"stop_reason":null,"mm_embedding_handle":null,"avg_decoded_tokens_per_iter":null,`,
					}.script))
				}
				for _, s := range r.gen {
					s.setScript(strictly(genReply{}.script))
				}
			}})
			for i := range 4 {
				a := r.ask(t, textPath, strings.Replace(helloText, "3", "8", 1), "X-Session-ID", "s1")
				a.wantOK(t, "ABC")
				a.wantUsage(t, 5, 3, 0)
				a.wantRoute(t, "ctx_gen", r.ctx[i%2].id, r.gen[i%2].id)
				s := r.ask(t, chatPath, helloChat)
				if s.status != http.StatusOK || s.err != nil || len(s.events) != 7 || s.events[6] != "[DONE]" {
					t.Fatalf("status %d, %v, %s", s.status, s.err, s.raw)
				}
				r.ask(t, textPath, helloText).wantOK(t, "ABC") // so that the next one meets the other worker
			}
			var models struct{ Data []struct{ ID string } }
			getJSON(t, r.url+"/v1/models", &models)
			if len(models.Data) != 1 || models.Data[0].ID != "tiny" {
				t.Errorf("models %+v", models)
			}
			a := r.ask(t, textPath, strings.Replace(helloText, "}", `,"unheard_of":1}`, 1))
			a.wantError(t, http.StatusBadRequest, "extra member unheard_of")
			// Without an abort to take, the worker's lease and the closed connection end the hand-over.
			for _, s := range r.gen {
				s.setScript(func(c *call) {
					c.status(http.StatusInternalServerError, `{"object":"error","message":"boom","type":"InternalServerError","param":null,"code":500}`)
				})
			}
			r.ask(t, textPath, helloText).wantError(t, http.StatusBadGateway, "boom")
		})
	}
}

// nativeLeg sends a leg as the orchestrator of TensorRT-LLM writes it and
// returns the reply's top level and first choice.
func nativeLeg(ctx context.Context, t *testing.T, p *process, path string, body object) (top, choice map[string]json.RawMessage) {
	t.Helper()
	resp, err := post(ctx, p.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var choices []map[string]json.RawMessage
	if err := json.Unmarshal(data, &top); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	if err := json.Unmarshal(top["choices"], &choices); err != nil || len(choices) != 1 {
		t.Fatalf("%v in %s", err, data)
	}
	return top, choices[0]
}

// TestNativeOrchestrator puts our workers under the orchestrator of
// TensorRT-LLM: it sends every member, null for what is absent, members that we
// do not know, the conversation id at its old place, and none of our headers.
func TestNativeOrchestrator(t *testing.T) {
	w := workerConfig{threads: 1}
	mixed, prefill, decode := startWorker(t, "mixed", w), startWorker(t, "ctx", w), startWorker(t, "gen", w)
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	for _, p := range []*process{prefill, decode} { // what it asks before it uses a worker
		get(t, p.url+"/health")
		getJSON(t, p.url+"/server_info", &object{})
		var clock struct {
			Receive  float64 `json:"receive_ts"`
			Transmit float64 `json:"transmit_ts"`
		}
		getJSON(t, p.url+"/steady_clock_offset", &clock)
		if clock.Receive <= 0 || clock.Transmit < clock.Receive {
			t.Errorf("%s: clock %+v", p.name, clock)
		}
		resp, err := post(ctx, p.url+"/steady_clock_offset", object{"offset": -0.5})
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	id := int64(687865856000134148)
	for _, path := range []string{chatPath, textPath} {
		for _, stream := range []bool{false, true} {
			id++
			var prompt any = prose(7, 60)
			if chat(path) {
				prompt = user(prose(7, 60))
			}
			s := sampleOf("", path, prompt, "max_tokens", 12, "temperature", 0)
			want, err := ask(ctx, mixed.url, path, s.body)
			if err != nil {
				t.Fatal(err)
			}
			body := s.streamed(false)
			params := object{
				"request_type": "context_only", "schedule_style": nil, "disagg_request_id": id, "ctx_request_id": nil, "ctx_dp_rank": nil,
				"ctx_info_endpoint": nil, "encoded_opaque_state": nil, "first_gen_tokens": nil, "first_gen_log_probs": nil, "draft_tokens": nil,
				"conversation_id": "talk-1", "multimodal_embedding_handles": nil, "multimodal_hashes": nil,
			}
			body["disaggregated_params"] = params
			top, choice := nativeLeg(ctx, t, prefill, path, body)
			if string(choice["finish_reason"]) != `"not_finished"` || top["prompt_token_ids"] == nil {
				t.Fatalf("ctx reply %s", top["choices"])
			}

			gen := s.streamed(stream)
			var got map[string]json.RawMessage // relayed as it came, with another type
			if err := json.Unmarshal(choice["disaggregated_params"], &got); err != nil {
				t.Fatal(err)
			}
			got["request_type"] = json.RawMessage(`"generation_only"`)
			got["ctx_usage"] = top["usage"]
			got["conversation_id"] = json.RawMessage(`"talk-1"`)
			gen["disaggregated_params"] = got
			if chat(path) {
				gen["prompt_token_ids"] = top["prompt_token_ids"]
			} else {
				gen["prompt"] = top["prompt_token_ids"]
			}
			answer, err := ask(ctx, decode.url, path, gen)
			if err != nil || !same(answer, want) {
				t.Errorf("%s, stream %t: %v\n got %s\nwant %s", path, stream, err, show(answer), show(want))
			}
			waitClean(t, settleLimit, prefill, decode)
		}
	}
	if info := get(t, decode.url+"/server_info"); !strings.Contains(info, "tokens_per_block") {
		t.Errorf("server_info %s", info)
	}
}
