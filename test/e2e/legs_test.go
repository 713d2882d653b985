//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"io"
	"testing"
	"time"
)

// contextLeg runs a ctx leg by hand, as a frontend does.
func contextLeg(ctx context.Context, t *testing.T, p *process, s sample, id int64) (params object, ids []int32) {
	t.Helper()
	body := s.streamed(false)
	body["disaggregated_params"] = object{"request_type": "context_only", "schedule_style": "context_first", "disagg_request_id": id}
	resp, err := post(ctx, p.url+s.path, body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var a struct {
		IDs     []int32 `json:"prompt_token_ids"`
		Choices []struct {
			Finish string `json:"finish_reason"`
			Params struct {
				ID       int64           `json:"disagg_request_id"`
				CtxID    int64           `json:"ctx_request_id"`
				Rank     int             `json:"ctx_dp_rank"`
				Endpoint string          `json:"ctx_info_endpoint"`
				State    string          `json:"encoded_opaque_state"`
				First    []int32         `json:"first_gen_tokens"`
				Logprobs json.RawMessage `json:"first_gen_log_probs"`
			} `json:"disaggregated_params"`
		}
	}
	if err := json.Unmarshal(data, &a); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	c := a.Choices[0]
	if c.Finish != "not_finished" || c.Params.ID != id || c.Params.CtxID != id || len(c.Params.First) != 1 || c.Params.State == "" {
		t.Fatalf("ctx reply %s", data)
	}
	params = object{
		"request_type": "generation_only", "schedule_style": "context_first", "disagg_request_id": id, "ctx_request_id": id,
		"ctx_dp_rank": c.Params.Rank, "ctx_info_endpoint": c.Params.Endpoint, "encoded_opaque_state": c.Params.State,
		"first_gen_tokens": c.Params.First, "first_gen_log_probs": c.Params.Logprobs,
	}
	return params, a.IDs
}

func generationLeg(ctx context.Context, p *process, s sample, params object, ids []int32) (*result, error) {
	body := s.streamed(true)
	body["prompt_token_ids"] = ids
	delete(body, "prompt")
	body["disaggregated_params"] = params
	return ask(ctx, p.url, s.path, body)
}

// TestLegs runs both legs by hand: the answer is that of one worker, and blocks
// that nobody fetches are freed by an abort, or by the lease.
func TestLegs(t *testing.T) {
	t.Parallel() // mostly waits
	w := workerConfig{threads: 1}
	mixed, prefill, decode := startWorker(t, "mixed", w), startWorker(t, "ctx", w), startWorker(t, "gen", w)
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	s := sampleOf("", chatPath, user(prose(2, 100)), "max_tokens", 12)
	want, err := ask(ctx, mixed.url, s.path, s.body)
	if err != nil {
		t.Fatal(err)
	}
	// This id is not the same as a float64.
	const id = 687865856000134148
	params, ids := contextLeg(ctx, t, prefill, s, id)
	if st := stats(t, prefill); st.Pinned == 0 || st.Handoffs != 1 {
		t.Errorf("after the ctx leg: %+v", st)
	}
	got, err := generationLeg(ctx, decode, s, params, ids)
	if err != nil || !same(got, want) {
		t.Errorf("by hand: %v\n got %s\nwant %s", err, show(got), show(want))
	}
	waitClean(t, settleLimit, prefill, decode)

	t.Run("abort", func(t *testing.T) {
		contextLeg(ctx, t, prefill, s, id+1)
		for i, want := range []string{"aborted", "unknown done"} {
			resp, err := post(ctx, prefill.url+"/disagg/abort", object{"disagg_request_id": int64(id + 1), "reason": "test"})
			if err != nil {
				t.Fatal(err)
			}
			var a struct{ State string }
			err = json.NewDecoder(resp.Body).Decode(&a)
			resp.Body.Close()
			if err != nil || a.State != want && (i == 0 || a.State != "unknown" && a.State != "done") {
				t.Errorf("abort %d: %q %v, want %s", i, a.State, err, want)
			}
		}
		waitClean(t, settleLimit, prefill) // long before the lease of a minute
	})
	t.Run("lease", func(t *testing.T) {
		prefill := startWorker(t, "ctx", workerConfig{threads: 1, lease: time.Second})
		params, ids := contextLeg(ctx, t, prefill, s, id+2)
		waitClean(t, settleLimit, prefill)
		// Too late: gen computes the prompt itself and gives the same answer.
		got, err := generationLeg(ctx, decode, s, params, ids)
		if err != nil || !same(got, want) {
			t.Errorf("after the lease: %v\n got %s\nwant %s", err, show(got), show(want))
		}
		waitClean(t, settleLimit, prefill, decode)
	})
}
