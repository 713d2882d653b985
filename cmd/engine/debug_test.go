package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func runDebug(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := debugCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestDebugPrintsTables(t *testing.T) {
	pages := map[string]string{
		"/debug/requests": `{"health":"stalled","reason":"step 5 runs","ranks":[{"rank":0,"age_ms":1000,"requests":[
			{"id":3,"kind":"full","state":"DECODE","in_state_ms":1234.5,"age_ms":61000,"holds":[{"kind":"step","age_ms":12}],"prompt_tokens":30,"output_tokens":4,"max_tokens":9,"blocks":3,"request_id":"abc"},
			{"id":7,"choice":2,"kind":"context_only","state":"CTX_SEND","holds":[{"kind":"lease","age_ms":7000}],"deadline_in_ms":2000,"disagg_request_id":"99"}]}]}`,
		"/debug/blocks": `{"ranks":[{"rank":0,"tokens_per_block":16,"total":10,"free":2,"active":4,"reusable":3,"leased":1,"fenced":1,"full_ms":0,
			"priorities":[{"priority":35,"blocks":3}],"holders":[{"id":3,"state":"DECODE","blocks":3,"shared_blocks":1,"holds":[]}],"more_holders":4}]}`,
		"/debug/flight": `{"ranks":[{"rank":0,"steps":[{"iter":1,"outcome":"ok"},{"iter":5,"outcome":"running","ctx_rows":2,"ctx_tokens":90,"gen_rows":7,"run_ms":20,"first_requests":[3,7]}],
			"events":[{"ago_ms":5000,"iter":3,"kind":"failed","id":2,"code":"bad_logits","text":"NaN"}]}]}`,
	}
	mux := http.NewServeMux()
	for path, body := range pages {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, body) })
	}
	admin := httptest.NewServer(mux)
	defer admin.Close()
	public := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/server_info" {
			http.NotFound(w, r)
			return
		}
		_, _ = fmt.Fprintf(w, `{"admin_addr":%q}`, admin.URL)
	}))
	defer public.Close()
	for _, c := range []struct {
		args []string
		want []string
		not  string
	}{
		{[]string{"requests"}, []string{
			"health: stalled  step 5 runs", "ID   STATE", "3    DECODE    1.235s", "1m1s", "step 12ms", "4/9", "abc", "7.2  CTX_SEND", "lease 7s", "disagg=99",
		}, ""},
		{[]string{"blocks"}, []string{"10 blocks of 16 tokens", "free       2       20.0%", "1 active blocks are free", "priority 35: 3 reusable", "and 4 more"}, "full, and"},
		{[]string{"iterations"}, []string{"ITER  AGO", "5     0s   running  2/90t    7", "3 7", "5s   3     failed  2   bad_logits  NaN"}, ""},
		{[]string{"flight", "--last", "1"}, []string{"running"}, "ok"},
		{[]string{"blocks", "--json"}, []string{`"tokens_per_block":16`}, "SHARE"},
	} {
		for _, url := range []string{admin.URL, public.URL + "/", strings.TrimPrefix(admin.URL, "http://")} {
			got, err := runDebug(t, append(c.args, "--url", url)...)
			if err != nil {
				t.Fatalf("%v: %v", c.args, err)
			}
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("%v: no %q in\n%s", c.args, want, got)
				}
			}
			if c.not != "" && strings.Contains(got, c.not) {
				t.Errorf("%v: %q in\n%s", c.args, c.not, got)
			}
		}
	}
}

func TestDebugSaysWhyNot(t *testing.T) {
	for body, want := range map[string]string{
		`{"admin_addr":"off"}`: "no admin listener",
		``:                     "no worker and no admin listener",
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/server_info" || body == "" {
				http.NotFound(w, r)
				return
			}
			_, _ = fmt.Fprint(w, body)
		}))
		if _, err := runDebug(t, "requests", "--url", srv.URL); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
		srv.Close()
	}
}
