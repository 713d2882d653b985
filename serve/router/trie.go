package router

import (
	"sort"

	"tandem/engine/blockhash"
)

// trie indexes sessions by every prefix of their path. A chained hash names a whole prefix, so a node is a map entry.
// Per instance a node keeps its sessions by recency: finding the newest one on a live instance costs one look-up per
// instance, however many sessions share a system prompt. The links live in the sessions; a node holds only list heads.
type trie struct {
	nodes map[blockhash.Hash]*node
	links int // sum of the lengths of all indexed paths
}

// node is one prefix. Invariant: no head is empty, and a node without heads is not in the trie.
type node struct{ heads []head }

// head is the recency list of one instance's sessions below a prefix, most recent first.
type head struct {
	instance    string
	first, last *link
}

// link is a session's place in one node's list.
type link struct {
	s          *session
	prev, next *link
}

func newTrie() trie { return trie{nodes: map[blockhash.Hash]*node{}} }

func (n *node) head(instance string) int {
	for i := range n.heads {
		if n.heads[i].instance == instance {
			return i
		}
	}
	return -1
}

// insert adds a session, which is the most recent of all, under each hash of its path.
func (t *trie) insert(s *session) {
	s.links = make([]link, len(s.path))
	t.links += len(s.path)
	for i, h := range s.path {
		n := t.nodes[h]
		if n == nil {
			n = &node{}
			t.nodes[h] = n
		}
		at := n.head(s.instance)
		if at < 0 {
			at = len(n.heads)
			n.heads = append(n.heads, head{instance: s.instance})
		}
		s.links[i].s = s
		n.heads[at].pushFront(&s.links[i])
	}
}

// remove takes a session out before its instance or path changes.
func (t *trie) remove(s *session) {
	t.links -= len(s.path)
	for i, h := range s.path {
		n := t.nodes[h]
		at := n.head(s.instance)
		n.heads[at].unlink(&s.links[i])
		if n.heads[at].first != nil {
			continue
		}
		n.heads[at] = n.heads[len(n.heads)-1]
		n.heads = n.heads[:len(n.heads)-1]
		if len(n.heads) == 0 {
			delete(t.nodes, h)
		}
	}
	s.links = nil
}

// touch makes a session the most recent one.
func (t *trie) touch(s *session) {
	for i, h := range s.path {
		n := t.nodes[h]
		l := &n.heads[n.head(s.instance)]
		l.unlink(&s.links[i])
		l.pushFront(&s.links[i])
	}
}

// depth returns how many leading hashes of a path sessions of an instance have.
func (t *trie) depth(path []blockhash.Hash, instance string) int {
	return sort.Search(len(path), func(i int) bool {
		n := t.nodes[path[i]]
		return n == nil || n.head(instance) < 0
	})
}

// newest returns the most recently used session of an instance below a prefix, nil if none.
func (t *trie) newest(prefix blockhash.Hash, instance string) *session {
	n := t.nodes[prefix]
	if n == nil {
		return nil
	}
	at := n.head(instance)
	if at < 0 {
		return nil
	}
	return n.heads[at].first.s
}

func (h *head) pushFront(l *link) {
	l.prev, l.next = nil, h.first
	if h.first != nil {
		h.first.prev = l
	} else {
		h.last = l
	}
	h.first = l
}

func (h *head) unlink(l *link) {
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		h.first = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	} else {
		h.last = l.prev
	}
	l.prev, l.next = nil, nil
}
