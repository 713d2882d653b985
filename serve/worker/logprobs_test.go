package worker

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/request"
)

// TestFirstLogprobRoundTrip: what ctx says of its first token is what gen has,
// whether or not the chosen token is among the alternatives.
func TestFirstLogprobRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(t, "alternatives")
		all := make([]request.TopLogprob, 30)
		for i := range all {
			// few distinct values, so that ties are common
			all[i] = request.TopLogprob{ID: int32(i), Logprob: -float64(rapid.IntRange(0, 6).Draw(t, "logprob"))}
		}
		slices.SortStableFunc(all, func(a, b request.TopLogprob) int {
			return cmp.Or(cmp.Compare(b.Logprob, a.Logprob), cmp.Compare(a.ID, b.ID))
		})
		at := rapid.IntRange(0, len(all)-1).Draw(t, "chosen")
		want := request.Token{ID: all[at].ID, Logprob: all[at].Logprob, Rank: at + 1}
		if n > 0 {
			want.Top = slices.Clone(all[:n])
		}
		got := request.Token{ID: want.ID}
		if err := firstLogprob(&got, tokenLogs(want), n); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func TestTokenLogsAreFinite(t *testing.T) {
	logs := tokenLogs(request.Token{ID: 1, Logprob: math.NaN(), Top: []request.TopLogprob{{ID: 2, Logprob: math.Inf(-1)}}})
	for _, l := range logs {
		if l.Logprob != minLogprob {
			t.Errorf("%+v", l)
		}
	}
	if err := firstLogprob(&request.Token{ID: 9}, logs, 1); err == nil {
		t.Error("a token without an entry is accepted")
	}
}
