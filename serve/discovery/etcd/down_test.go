package etcd

import (
	"context"
	"strings"
	"testing"
	"time"

	"tandem/test/ports"
)

// Nobody listens there, and every error says where.
func TestErrorsNameTheEndpoint(t *testing.T) {
	at := ports.Address(t)
	store, err := New([]string{at}, Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, find := NewHomes(store, "/homes/").Find(ctx, "c")
	for name, err := range map[string]error{"put": store.Put(ctx, "k", "v", time.Second), "delete": store.Delete(ctx, "k"), "find": find} {
		if err == nil || !strings.Contains(err.Error(), at) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
