package live

import (
	"encoding/json"
	"testing"

	"tandem/engine/executor"
	"tandem/serve/config"
	"tandem/serve/router"
)

// The simulator plans steps as the workers do that are started with the setup's keys.
func TestSetupIsWhatItsKeysSay(t *testing.T) {
	s := small
	s.Router = router.KindRoundRobin
	keys, err := json.Marshal(s.Keys())
	if err != nil {
		t.Fatal(err)
	}
	w, _, err := config.LoadWorker(executor.Mixed, config.Source{Data: keys})
	if err != nil {
		t.Fatal(err)
	}
	want, got := w.Core(executor.Mixed), s.Core()
	for _, c := range []*executor.Config{&want, &got} {
		c.Namespace, c.Vocab, c.Blocks, c.MaxSeqLen, c.EventBuffer = "", 0, 0, 0, 0
		c.Layout.Layers, c.Layout.KVHeads, c.Layout.HeadDim, c.Layout.DType, c.Layout.BlockTokens = 0, 0, 0, "", 0
	}
	if got != want {
		t.Errorf("simulated %+v\nworkers  %+v", got, want)
	}
}
