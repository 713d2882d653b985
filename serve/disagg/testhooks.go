//go:build testhooks

package disagg

import (
	"context"
	"os"
)

// With TANDEM_TEST_HOLD a build for tests goes on after a ctx reply only when the client has left.
func init() {
	if os.Getenv("TANDEM_TEST_HOLD") != "" {
		heldGen = func(ctx context.Context) { <-ctx.Done() }
	}
}
