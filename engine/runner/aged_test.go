package runner

import (
	"testing"
	"time"

	"tandem/engine/executor"
)

func TestTimesCrossClocks(t *testing.T) {
	const far, near = 100 * time.Second, 7 * time.Second
	sent := executor.Times{Arrived: far - 3*time.Second, Scheduled: far - 2*time.Second, First: far, Blocks: 4}
	got := aged(aged(sent, far), near)
	want := executor.Times{Arrived: near - 3*time.Second, Scheduled: near - 2*time.Second, First: near - 1, Blocks: 4}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
