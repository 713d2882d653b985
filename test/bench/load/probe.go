package load

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"tandem/test/bench/result"
	"tandem/test/bench/workload"
)

// ErrProbe says that the requests which try a server out did not work.
var ErrProbe = errors.New("the server does not answer as it should")

// Calibration is how the server counts the tokens of our texts.
type Calibration struct {
	Overhead int     // tokens that it adds to a prompt
	PerWord  float64 // tokens of one word
	Known    bool    // it told; else the others are 0 and 1
}

// Calibrate sends two short requests and compares their lengths with what the server counts.
func Calibrate(ctx context.Context, c *Client, p *Prompts) (Calibration, error) {
	var told [2]int
	for i, n := range [2]int{32, 96} {
		w := &workload.Workload{Name: "probe", Seed: uint64(time.Now().UnixNano()), Requests: []workload.Request{{ID: fmt.Sprint("probe", i), Input: n, Output: 1, Arrival: workload.NoArrival}}}
		q := *p
		q.Overhead = 0
		if err := q.Bind(w); err != nil {
			return Calibration{}, err
		}
		body, err := q.Body(&w.Requests[0], 0, 0)
		if err != nil {
			return Calibration{}, err
		}
		begin := time.Now()
		r := &result.Record{AskedInput: n, AskedOutput: 1, Send: result.Unset, First: result.Unset, FirstAnswer: result.Unset, Last: result.Unset}
		c.Do(ctx, &Outgoing{Body: body}, func() int64 { return int64(time.Since(begin)) }, r, nil)
		if err := ctx.Err(); err != nil {
			return Calibration{}, err //nolint:wrapcheck // nothing is wrong with the server
		}
		if r.Outcome != result.OK {
			return Calibration{}, fmt.Errorf("%w: %s: %s", ErrProbe, c.URL, r.Error)
		}
		if r.Counted != "usage" {
			return Calibration{PerWord: 1}, nil
		}
		told[i] = r.Input
	}
	per := float64(told[1]-told[0]) / 64
	over := float64(told[0]) - 32*per
	return Calibration{Overhead: max(0, int(math.Round(over))), PerWord: per, Known: true}, nil
}
