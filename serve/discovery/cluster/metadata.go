package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"tandem/serve/discovery"
)

// MetadataPrefixes are what the keys of a metadata server begin with.
var MetadataPrefixes = []string{"disagg-meta/", "trtllm/"}

// emptyPolls is how many empty answers in a row leave the last known list in force: an empty list is more often a metadata
// server that was set up anew than a cluster of which everybody left at once.
const emptyPolls = 3

// checks is how many polls in a row find nobody at a worker's address before its key is removed.
const checks = 2

// Metadata follows a metadata server: workers of other implementations write their URL and role there, without a lease.
type Metadata struct {
	Store interface {
		// List returns all keys below prefix with their values.
		List(ctx context.Context, prefix string) (map[string]string, error)
		// Delete drops a key.
		Delete(ctx context.Context, key string) error
	}
	// Answers asks whether there is a worker at a base URL, healthy or not.
	Answers func(ctx context.Context, url string) bool
	Refresh time.Duration // between two polls
	Timeout time.Duration // of one question
	Log     *slog.Logger
}

// metadataState is what Follow remembers between polls.
type metadataState struct {
	known   map[string]discovery.Member // in force, by key
	empty   int                         // empty answers in a row
	fails   map[string]int              // polls in a row without an answer, of keys whose worker did answer once
	skipped map[string]string           // malformed values that were logged
}

// Follow polls until ctx ends and hands the workers to a registry. A key whose worker did answer and does so no more, twice
// in a row, is removed for all frontends; one whose worker still loads is left alone.
func (m *Metadata) Follow(ctx context.Context, to Members) {
	st := metadataState{fails: map[string]int{}, skipped: map[string]string{}}
	tick := time.NewTicker(m.Refresh)
	defer tick.Stop()
	failing := false
	for {
		list, err := m.list(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil && !failing:
			m.Log.Warn("the metadata server cannot be read; the last list of workers holds", "error", err)
			to.SetWarning(WarnStorage, fmt.Sprintf("the last list of workers holds: %v", err))
		case err == nil && failing:
			m.Log.Info("the metadata server can be read again")
			to.SetWarning(WarnStorage, "")
		}
		failing = err != nil
		if err == nil {
			st.take(m.parse(list, &st))
			m.prune(ctx, &st)
			to.SetMembers(slices.SortedFunc(maps.Values(st.known), func(a, b discovery.Member) int {
				return strings.Compare(a.WorkerID, b.WorkerID)
			}))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (m *Metadata) list(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	for _, prefix := range MetadataPrefixes {
		part, err := m.Store.List(ctx, prefix)
		if err != nil {
			return nil, err
		}
		maps.Copy(out, part)
	}
	return out, nil
}

func (m *Metadata) parse(list map[string]string, st *metadataState) map[string]discovery.Member {
	out, skipped := map[string]discovery.Member{}, map[string]string{}
	for key, value := range list {
		member, err := parseMetadata(key, value)
		if err != nil {
			if st.skipped[key] != value {
				m.Log.Warn("key of the metadata server skipped", "error", err)
			}
			skipped[key] = value
			continue
		}
		out[key] = member
	}
	st.skipped = skipped
	return out
}

func parseMetadata(key, value string) (discovery.Member, error) {
	var v struct {
		URL  string          `json:"url"`
		Role json.RawMessage `json:"server_type"`
	}
	if err := json.Unmarshal([]byte(value), &v); err != nil {
		return discovery.Member{}, fmt.Errorf("value of %q: %w", key, err)
	}
	role, err := parseRole(v.Role)
	if err != nil {
		return discovery.Member{}, fmt.Errorf("value of %q: server_type: %w", key, err)
	}
	id, url, err := discovery.ParseURL(v.URL)
	if err != nil {
		return discovery.Member{}, fmt.Errorf("value of %q: %w", key, err)
	}
	return discovery.Member{WorkerID: key, ID: id, URL: url, Role: role}, nil
}

// take applies one answer.
func (st *metadataState) take(list map[string]discovery.Member) {
	if len(list) == 0 {
		st.empty++
		if st.empty <= emptyPolls {
			return
		}
	} else {
		st.empty = 0
	}
	st.known = list
	maps.DeleteFunc(st.fails, func(key string, _ int) bool { _, ok := list[key]; return !ok })
}

// prune removes the keys of workers that died.
func (m *Metadata) prune(ctx context.Context, st *metadataState) {
	for _, key := range slices.Sorted(maps.Keys(st.known)) {
		at := st.known[key]
		actx, cancel := context.WithTimeout(ctx, m.Timeout)
		ok := m.Answers(actx, at.URL)
		cancel()
		fails, before := st.fails[key]
		switch {
		case ctx.Err() != nil:
			return
		case ok:
			st.fails[key] = 0
			continue
		case !before:
			continue
		case fails+1 < checks:
			st.fails[key]++
			continue
		}
		m.Log.Warn("worker does not answer, its key is removed", "key", key, "server", at.ID)
		if err := m.Store.Delete(ctx, key); err != nil {
			m.Log.Warn("the key stays", "key", key, "error", err)
		}
		delete(st.known, key)
		delete(st.fails, key)
	}
}
