package cluster

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tandem/serve/discovery"
)

// metaStore is a metadata server that a test edits.
type metaStore struct {
	mu   sync.Mutex
	keys map[string]string
	fail error
	gone map[string]bool // base URLs where nobody is
}

func (m *metaStore) edit(f func(*metaStore)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m)
}

func (m *metaStore) List(_ context.Context, prefix string) (map[string]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := maps.Clone(m.keys)
	maps.DeleteFunc(out, func(key, _ string) bool { return !strings.HasPrefix(key, prefix) })
	return out, m.fail
}

func (m *metaStore) Delete(_ context.Context, key string) error {
	m.edit(func(m *metaStore) { delete(m.keys, key) })
	return nil
}

func (m *metaStore) answers(_ context.Context, url string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.gone[url]
}

// roster is the registry of these tests.
type roster struct {
	mu      sync.Mutex
	members string
	warning string
}

func (r *roster) SetMembers(list []discovery.Member) {
	var out []string
	for _, m := range list {
		out = append(out, string(m.Role)+"@"+m.ID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.members = strings.Join(out, " ")
}

func (r *roster) SetWarning(_, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warning = message
}

func TestMetadataServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &metaStore{gone: map[string]bool{"http://g2:1": true}, keys: map[string]string{
			"disagg-meta/c": `{"url":"http://c:1","server_type":"context"}`,
			"trtllm/1":      `{"url":"g:1","server_type":"generation","more":1}`,
			"trtllm/2":      `{"url":"g2:1","server_type":"GENERATION"}`, // still loads
			"trtllm/bad":    `{"url":"g3","server_type":"generation"}`,
			"other/1":       `{"url":"g4:1","server_type":"generation"}`,
		}}
		var to roster
		m := Metadata{Store: store, Answers: store.answers, Refresh: 10 * time.Second, Timeout: time.Second, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Follow(ctx, &to) }()
		defer func() { cancel(); <-done }()
		want := func(polls int, members string, warns bool) {
			t.Helper()
			time.Sleep(time.Duration(polls) * m.Refresh)
			synctest.Wait()
			to.mu.Lock()
			defer to.mu.Unlock()
			if to.members != members || (to.warning != "") != warns {
				t.Errorf("members %q, want %q; warning %q", to.members, members, to.warning)
			}
		}
		const all = "context@c:1 generation@g:1 generation@g2:1"
		synctest.Wait()
		want(0, all, false)
		want(5, all, false) // a worker that never answered keeps its key
		store.edit(func(s *metaStore) { s.gone["http://g:1"] = true })
		want(1, all, false)
		want(1, "context@c:1 generation@g2:1", false)
		store.edit(func(s *metaStore) {
			if _, ok := s.keys["trtllm/1"]; ok {
				t.Error("the key of a dead worker stays")
			}
		})
		store.edit(func(s *metaStore) { s.fail = errors.New("no route") })
		want(2, "context@c:1 generation@g2:1", true)
		var kept map[string]string
		store.edit(func(s *metaStore) { kept, s.fail, s.keys = s.keys, nil, map[string]string{} })
		want(3, "context@c:1 generation@g2:1", false)
		want(1, "", false)
		store.edit(func(s *metaStore) { s.keys = kept })
		want(1, "context@c:1 generation@g2:1", false)
	})
}
