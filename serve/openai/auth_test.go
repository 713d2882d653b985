package openai

import "testing"

func TestSignVectors(t *testing.T) {
	key := Key("secret")
	id := int64(687865856000134148)
	conv, parent, rank := "child-1", "parent-9", 0
	endpoint, opaque := "tcp://10.0.0.1:5000", "b3BhcXVl"
	aff := Affinity{Role: RoleContext, Model: "tiny", ConversationID: &conv, AffinityKey: &parent, RequestType: ContextOnly, DisaggID: &id}
	noConv := aff
	noConv.ConversationID = nil
	params := &DisaggParams{DisaggRequestID: &id, CtxRequestID: &id, CtxDPRank: &rank, CtxInfoEndpoint: &endpoint, EncodedOpaqueState: &opaque}
	for _, tc := range []struct{ name, got, want string }{
		{"affinity", key.SignAffinity(aff), "sha256=736ef9d40aa695e6134c881189ddaddd70eecec07917f8e7a4ac7b4b341d223d"},
		{"affinity without conversation", key.SignAffinity(noConv), "sha256=1f29c0a870b2ccdaf3b578a630b544a6994bc893c582ebc923d8d645dc6a8f49"},
		{"handoff", key.SignHandoff(params), "sha256=6ea9885a24dc7f81f15e625723855b00c051d4c691bd2bd8d0925d5bdd849a7c"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, tc.got, tc.want)
		}
	}
	if !key.VerifyAffinity(aff, key.SignAffinity(aff)) || key.VerifyAffinity(noConv, key.SignAffinity(aff)) {
		t.Error("VerifyAffinity does not depend on the conversation")
	}
	for name, change := range map[string]func(*DisaggParams){
		"endpoint": func(p *DisaggParams) { s := "tcp://evil:1"; p.CtxInfoEndpoint = &s },
		"opaque":   func(p *DisaggParams) { p.EncodedOpaqueState = nil },
		"id":       func(p *DisaggParams) { n := id + 1; p.DisaggRequestID = &n },
		"ctx id":   func(p *DisaggParams) { p.CtxRequestID = nil },
		"rank":     func(p *DisaggParams) { r := 1; p.CtxDPRank = &r },
	} {
		other := *params
		change(&other)
		if key.VerifyHandoff(&other, key.SignHandoff(params)) {
			t.Errorf("a signature still holds after the %s changed", name)
		}
	}
	if !key.VerifyAbort(id, key.SignAbort(id)) || key.VerifyAbort(id+1, key.SignAbort(id)) || key.VerifyAbort(id, Key("other").SignAbort(id)) ||
		key.VerifyAbort(id, "") || Key("").VerifyAbort(id, Key("").SignAbort(id)) {
		t.Error("VerifyAbort does not depend on id and key")
	}
	if Key("").VerifyHandoff(params, Key("").SignHandoff(params)) {
		t.Error("an empty key verifies")
	}
}
