package disagg

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// handoff is what a ctx reply leaves behind: the answer so far and, unless the request finished, the obligation that the
// ctx worker keeps its blocks until they are fetched, aborted or their lease ends.
type handoff struct {
	instance   discovery.Instance
	id         int64 // disagg_request_id from the reply; gen leg and aborts use it
	params     *openai.DisaggParams
	finish     string // not_finished if any choice is
	usage      openai.Usage
	body       openai.Body // the whole reply
	choices    []openai.Body
	promptIDs  json.RawMessage
	idsAsBytes bool
	early      bool   // the frontend emits the first tokens itself
	route      string // the worker's route receipt
	model      string
	settled    bool // the blocks are known to have been fetched or given up
}

// open counts an obligation that begins.
func (h *handoff) open(s *Server) { s.handoffs.Add(1) }

// settle counts it as ended; later calls and a nil handoff do nothing. It returns whether this call ended it.
func (h *handoff) settle(s *Server) bool {
	if h == nil || h.settled {
		return false
	}
	h.settled = true
	s.handoffs.Add(-1)
	return true
}

// parseCtxReply reads the answer of a ctx leg. The error says what is wrong with it.
func parseCtxReply(data []byte) (*handoff, error) {
	body, err := openai.ParseBody(data)
	if err != nil {
		return nil, fmt.Errorf("the reply is no JSON object: %w", err)
	}
	h := &handoff{body: body}
	raw, _ := body.Get("choices")
	var choices []json.RawMessage
	if err := json.Unmarshal(raw, &choices); err != nil || len(choices) == 0 {
		return nil, fmt.Errorf("the reply has %d choices", len(choices))
	}
	h.choices = make([]openai.Body, len(choices))
	for i := range choices {
		if h.choices[i], err = openai.ParseBody(choices[i]); err != nil {
			return nil, fmt.Errorf("choices[%d]: %w", i, err)
		}
	}
	h.finish = finishOf(h.choices)
	if raw, ok := h.choices[0].Get("disaggregated_params"); ok {
		if h.params, err = openai.DecodeDisaggParams(raw); err != nil {
			return nil, fmt.Errorf("disaggregated_params: %w", err)
		}
	}
	if raw, ok := body.Get("model"); ok {
		_ = json.Unmarshal(raw, &h.model)
	}
	if raw, ok := body.Get("usage"); ok && string(raw) != "null" {
		if err := json.Unmarshal(raw, &h.usage); err != nil {
			return nil, fmt.Errorf("usage: %w", err)
		}
		if !h.usage.Sane() {
			return nil, errors.New("usage: it has counts of tokens that cannot be")
		}
	}
	if raw, ok := body.Get("prompt_token_ids_b64"); ok && string(raw) != "null" && string(raw) != `""` {
		h.promptIDs, h.idsAsBytes = raw, true
	} else if raw, ok := body.Get("prompt_token_ids"); ok && string(raw) != "null" && string(raw) != "[]" {
		h.promptIDs = raw
	}
	return h, nil
}

// skipsGen decides whether the answer is complete after the ctx leg. maxSeqLen is the ctx worker's, 0 = unknown.
func (h *handoff) skipsGen(budget *int, maxSeqLen int) bool {
	switch h.finish {
	case openai.FinishNotFinished, openai.FinishCancelled, openai.FinishError, "":
		return false
	case openai.FinishLength:
		// Older workers say "length" for "one step done", so the budget decides.
		one := budget != nil && *budget == 1
		return one || maxSeqLen > 0 && h.usage.PromptTokens+1 >= maxSeqLen
	}
	return true
}

// verify checks a reply whose request goes on at a gen worker with n choices. wantLogprobs tells that they are needed.
func (h *handoff) verify(n int, wantLogprobs bool) error {
	if h.params == nil {
		return fmt.Errorf("the reply lacks disaggregated_params (finish_reason %q, ids null and null)", h.finish)
	}
	p := h.params
	switch {
	case h.finish == "":
		return fmt.Errorf("the reply lacks a finish_reason (ids %s and %s)", idText(p.CtxRequestID), idText(p.DisaggRequestID))
	case p.CtxRequestID == nil || p.DisaggRequestID == nil:
		return fmt.Errorf("the reply lacks an id: finish_reason %q, ctx_request_id %s, disagg_request_id %s",
			h.finish, idText(p.CtxRequestID), idText(p.DisaggRequestID))
	case len(h.choices) != n:
		return fmt.Errorf("the reply has %d choices, not %d", len(h.choices), n)
	case len(p.FirstGenTokens) != n:
		return fmt.Errorf("the reply has %d first_gen_tokens, not %d: finish_reason %q, ctx_request_id %s, disagg_request_id %s",
			len(p.FirstGenTokens), n, h.finish, idText(p.CtxRequestID), idText(p.DisaggRequestID))
	case h.promptIDs == nil:
		return errors.New("the reply lacks prompt_token_ids")
	case wantLogprobs && p.FirstGenLogProbs == nil:
		return errors.New("the request asked for logprobs and the reply has none for the first token")
	}
	return nil
}

func idText(id *int64) string {
	if id == nil {
		return "null"
	}
	return fmt.Sprint(*id)
}

// failure tells whether the reply ends the request without an answer: the worker was told to stop, or failed.
func (h *handoff) failure() *openai.Error {
	switch h.finish {
	case openai.FinishCancelled:
		return openai.NewError(openai.StatusClientClosed, "cancelled", "the request was cancelled during prefill")
	case openai.FinishError:
		return openai.NewError(http.StatusBadGateway, "", "the worker reports that prefill failed")
	}
	return nil
}
