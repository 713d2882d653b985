package disagg

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"tandem/serve/discovery"
)

// clockWait bounds the measurement of one worker's clock.
const clockWait = 2 * time.Second

// syncClock measures a worker's steady clock against ours, once for each process that runs there, and tells it the offset
// to add. It goes on in the background; a failure only makes the stages of its records less exact.
func (s *Server) syncClock(in discovery.Instance) {
	if !s.perf.ring.On() {
		return
	}
	if _, done := s.clocks.LoadOrStore(in.ID+" "+in.Info.Incarnation, true); done {
		return
	}
	s.background.Go(func() {
		ctx, cancel := context.WithTimeout(s.stop, clockWait)
		defer cancel()
		if err := s.measureClock(ctx, in); err != nil {
			s.log.Warn("the clock of a worker cannot be compared: its perf metrics are not exact", "server", in.ID, "error", err)
		}
	})
}

func (s *Server) measureClock(ctx context.Context, in discovery.Instance) error {
	var at struct {
		Receive  float64 `json:"receive_ts"`
		Transmit float64 `json:"transmit_ts"`
	}
	originate := s.perf.at(s.now())
	if err := s.fetchJSON(ctx, in.URL+"/steady_clock_offset", &at); err != nil {
		return err
	}
	offset := clockOffset(originate, at.Receive, at.Transmit, s.perf.at(s.now()))
	body := strconv.AppendFloat([]byte(`{"offset":`), -offset, 'f', 9, 64)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, in.URL+"/steady_clock_offset", bytes.NewReader(append(body, '}')))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answered %d", resp.StatusCode)
	}
	return nil
}

// clockOffset is how far a worker's clock is ahead of ours, in seconds: half of what both ways of an exchange say, so that
// equal delays cancel out.
func clockOffset(originate, receive, transmit, destination float64) float64 {
	return ((receive - originate) + (transmit - destination)) / 2
}
