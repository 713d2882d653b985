package cluster

import (
	"container/list"
	"context"
	"crypto/rand"
	"sync"
)

// Limits of Homes, in conversations, and of one exchange between two of them.
const (
	maxHomes     = 200_000
	homesAnswer  = 5_000
	maxHomeBytes = 512 // of a key or an instance
)

// home says at which instance a conversation lives.
type home struct {
	Key      string `json:"key"`
	Instance string `json:"instance"`

	seq uint64 // of its last change or use
}

// Homes remembers where conversations live, in memory; the ones that were kept longest ago go first. Safe for concurrent
// use. The keys are opaque: whoever keeps them makes them of role and conversation.
type Homes struct {
	epoch string // of this process: another one starts empty

	mu    sync.Mutex
	limit int
	seq   uint64
	order *list.List // of *home, newest first
	items map[string]*list.Element
}

// NewHomes makes empty Homes.
func NewHomes() *Homes {
	return &Homes{epoch: rand.Text(), limit: maxHomes, order: list.New(), items: map[string]*list.Element{}}
}

// Find returns the instance of a key, "" = not known. It never fails.
func (h *Homes) Find(_ context.Context, key string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.find(key), nil
}

func (h *Homes) find(key string) string {
	if e, ok := h.items[key]; ok {
		return e.Value.(*home).Instance
	}
	return ""
}

// Keep stores instance unless another one than was is there by now, and returns what is there then. Of two frontends that
// place a new conversation at the same time one thus learns of the other's choice. Errors: ErrTooLong.
func (h *Homes) Keep(_ context.Context, key, instance, was string) (string, error) {
	if key == "" || instance == "" || len(key) > maxHomeBytes || len(instance) > maxHomeBytes {
		return "", ErrTooLong
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := h.find(key); now != "" && now != was && now != instance {
		return now, nil
	}
	h.put(key, instance)
	return instance, nil
}

// put stores a home as the newest. The caller holds mu.
func (h *Homes) put(key, instance string) {
	h.seq++
	if e, ok := h.items[key]; ok {
		at := e.Value.(*home)
		at.Instance, at.seq = instance, h.seq
		h.order.MoveToFront(e)
		return
	}
	h.items[key] = h.order.PushFront(&home{key, instance, h.seq})
	if h.order.Len() > h.limit {
		delete(h.items, h.order.Remove(h.order.Back()).(*home).Key)
	}
}

// learn takes over what another one knows, oldest first.
func (h *Homes) learn(homes []home) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range homes {
		h.put(at.Key, at.Instance)
	}
}

// changes lists up to homesAnswer homes that were kept after seq, oldest first, and the number to go on from.
func (h *Homes) changes(seq uint64) (out []home, next uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.order.Front()
	for e != nil && e.Value.(*home).seq > seq {
		e = e.Next()
	}
	if e == nil {
		e = h.order.Back()
	} else {
		e = e.Prev()
	}
	next = seq
	for ; e != nil && len(out) < homesAnswer; e = e.Prev() {
		at := *e.Value.(*home)
		out, next = append(out, at), at.seq
	}
	return out, next
}
