package openai

import (
	"context"
	"fmt"
)

// Bounds of a Gate.
const (
	bigBody   = 256 << 10 // bytes of a body that a gate holds back
	bigAtOnce = 4         // such bodies at once
)

// Gate lets few big request bodies be read and tokenised at a time. That takes up to fifty times the memory of the body for
// as long as it lasts, so many clients with big bodies could else take all of a machine by requests that are refused in the
// end. Other requests pass at once. The zero value lets everybody pass; make one with NewGate. Safe for concurrent use.
type Gate struct {
	slots chan struct{} // nil = always open
}

// NewGate makes a gate.
func NewGate() Gate { return Gate{slots: make(chan struct{}, bigAtOnce)} }

// Enter waits until a body of size bytes may be worked on; call leave after that. The error is the cause of ctx, when it ends
// before.
func (g Gate) Enter(ctx context.Context, size int) (leave func(), err error) {
	if size < bigBody || g.slots == nil {
		return func() {}, nil
	}
	select {
	case g.slots <- struct{}{}:
		return func() { <-g.slots }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other big requests: %w", context.Cause(ctx))
	}
}
