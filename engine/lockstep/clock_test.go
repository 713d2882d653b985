package lockstep

import (
	"testing"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// What requests were watched for goes with them, however far their deadlines are,
// and those that wait keep theirs.
func TestClockForgets(t *testing.T) {
	l := &Rank{clock: queueClock{due: never, live: map[request.ID]time.Duration{}}}
	l.cfg.QueueTimeout = time.Hour
	waits := 0
	for i := range 10000 {
		id := request.ID(i + 1)
		l.Enter(time.Duration(i), &Arrival{
			Item: adprouter.Item{ID: id}, Deadline: 2 * time.Hour, Handle: &transfer.Handle{Lease: 4 * time.Hour},
		})
		if i%1000 != 0 {
			delete(l.clock.live, id) // placed
		} else {
			waits++
		}
	}
	if n := len(l.clock.timed); n > 64+5*waits {
		t.Errorf("%d times are watched for %d requests", n, waits)
	}
	l.out = Delivery{}
	l.tick(3 * time.Hour)
	ends := map[request.Code]int{}
	for _, r := range l.out.Removals {
		ends[r.Code]++
	}
	if ends[request.QueueTimeout] != waits || ends[request.DeadlineExceeded] != waits || len(l.fates.KeepAlives) != waits {
		t.Errorf("%d requests wait: %v, %d keep-alives", waits, ends, len(l.fates.KeepAlives))
	}
}
