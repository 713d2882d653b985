package router

import (
	"fmt"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"tandem/engine/blockhash"
	"tandem/serve/discovery"
)

// codePointsPerToken scales hash_skip_count, which counts tokens, when code points are hashed instead.
const codePointsPerToken = 5

// sessionKey names a session. Implicit sessions have a key space of their own: no client can name one.
type sessionKey struct {
	implicit bool
	id       string
}

// session is one remembered conversation. Invariant: it is in the LRU iff it is in the trie under every hash of path.
type session struct {
	key      sessionKey
	instance string
	path     []blockhash.Hash // chain over the content's blocks; empty for content too short to hash
	links    []link           // its places in the trie, one per hash of path
	used     uint64           // recency, unique and growing
}

// maxLinks bounds the hashes that all sessions together keep, about 100 MB; beyond it the least recently used go, so
// that long contexts cannot fill the memory before max_sessions is reached.
const maxLinks = 1 << 20

// Conversation keeps conversations on the instance of their first turn, known by id or by a shared prefix.
type Conversation struct {
	ledger
	threshold float64
	basis     string
	block     int  // code points or tokens per hashed block
	skip      int  // leading tokens that are not hashed
	useIDs    bool // hash ids that the client did not send, too
	sessions  *simplelru.LRU[sessionKey, *session]
	trie      trie
	tick      uint64 // recency source
	ties      uint64 // placements so far
	implicits uint64
}

// NewConversation builds the router from a valid configuration.
func NewConversation(c Config) *Conversation {
	r := &Conversation{
		ledger: newLedger(), threshold: DefaultMatchThreshold, basis: BasisRequest,
		block: DefaultTokensPerBlock, skip: c.HashSkipCount, useIDs: c.UseTokenIDs, trie: newTrie(),
	}
	if c.MatchThreshold != nil {
		r.threshold = *c.MatchThreshold
	}
	if c.MatchBasis != "" {
		r.basis = c.MatchBasis
	}
	if c.TokensPerBlock > 0 {
		r.block = c.TokensPerBlock
	}
	size := DefaultMaxSessions
	if c.MaxSessions > 0 {
		size = c.MaxSessions
	}
	lru, err := simplelru.NewLRU(size, func(_ sessionKey, s *session) { r.trie.remove(s) })
	if err != nil {
		panic(fmt.Sprintf("router: session table of size %d: %v", size, err))
	}
	r.sessions = lru
	return r
}

// Kind implements Router.
func (r *Conversation) Kind() string { return KindConversation }

// Select implements Router.
func (r *Conversation) Select(req Request) (Selection, error) {
	path := r.hash(&req)
	r.mu.Lock()
	defer r.mu.Unlock()
	list := req.usable()
	if len(list) == 0 {
		return Selection{}, ErrNoServers
	}
	in, why, like := r.choose(&req, list, path)
	weight := r.weight(&req, in.ID, path) // of what was there before this leg
	r.remember(&req, in.ID, why, like, path)
	return r.grant(in, why, weight), nil
}

// weight is the content load of a leg on an instance: on ctx legs without what sessions that live there have of it, since a turn
// of a long conversation is little work where the turns before it ran. A block of each leg counts anyway.
func (r *Conversation) weight(req *Request, instance string, path []blockhash.Hash) int64 {
	n := len(path)
	if !req.Generation {
		n = max(n-r.trie.depth(path, instance), min(n, 1))
	}
	return int64(n) * int64(r.block)
}

// choose takes the instance of the request's session, or of one that began alike, which it returns too, or a new place.
func (r *Conversation) choose(req *Request, list []discovery.Instance, path []blockhash.Hash) (in discovery.Instance, why Outcome, like *session) {
	if req.RoutingID != "" {
		in, why = r.sticky(sessionKey{id: req.RoutingID}, list)
		return in, why, nil
	}
	if like, in = r.match(list, path); like != nil {
		return in, Implicit, like
	}
	return r.place(list), New, nil
}

// remember records where a request went, for the turns that follow it.
func (r *Conversation) remember(req *Request, instance string, why Outcome, like *session, path []blockhash.Hash) {
	if like != nil {
		r.record(like.key, instance, path)
		return
	}
	if req.RoutingID == "" {
		r.implicits++
		r.record(sessionKey{implicit: true, id: fmt.Sprintf("conv_id:%d", r.implicits)}, instance, path)
		return
	}
	own := req.RoutingID == req.ConversationID
	if own || why != Sticky {
		r.record(sessionKey{id: req.RoutingID}, instance, pathIf(own, path))
	}
	if !own && req.ConversationID != "" {
		r.record(sessionKey{id: req.ConversationID}, instance, path)
	}
}

// pathIf gives a session that is known only through an affinity key no path: the content is a child's, not its own.
func pathIf(own bool, path []blockhash.Hash) []blockhash.Hash {
	if own {
		return path
	}
	return nil
}

// sticky returns the session's instance if it may be used, else a new place.
func (r *Conversation) sticky(key sessionKey, list []discovery.Instance) (discovery.Instance, Outcome) {
	s, known := r.sessions.Get(key)
	if known {
		r.touch(s)
		for _, in := range list {
			if in.ID == s.instance {
				return in, Sticky
			}
		}
		return r.place(list), Fallback
	}
	return r.place(list), New
}

// place takes the least content load, ties in turn.
func (r *Conversation) place(list []discovery.Instance) discovery.Instance {
	least := r.least(list)
	in := least[r.ties%uint64(len(least))]
	r.ties++
	return in
}

// match finds the most recent session with the deepest common prefix on a usable instance, if it is deep enough.
func (r *Conversation) match(list []discovery.Instance, path []blockhash.Hash) (*session, discovery.Instance) {
	for depth := len(path); depth > 0; depth-- {
		var best *session
		var at discovery.Instance
		for _, in := range list {
			if s := r.trie.newest(path[depth-1], in.ID); s != nil && (best == nil || s.used > best.used) {
				best, at = s, in
			}
		}
		if best == nil {
			continue
		}
		blocks := len(path)
		if r.basis == BasisSession {
			blocks = len(best.path)
		}
		if float64(depth) >= r.threshold*float64(blocks) {
			return best, at
		}
		return nil, discovery.Instance{}
	}
	return nil, discovery.Instance{}
}

// record makes key live on instance with the given path and marks it as used just now.
func (r *Conversation) record(key sessionKey, instance string, path []blockhash.Hash) {
	if s, ok := r.sessions.Get(key); ok {
		r.trie.remove(s)
		defer r.shrink()
		if path == nil && s.instance != instance {
			path = s.path // an affinity key moved; its own content is still what it was
		}
		s.instance, s.path = instance, path
		r.tick++
		s.used = r.tick
		r.trie.insert(s)
		return
	}
	r.tick++
	s := &session{key: key, instance: instance, path: path, used: r.tick}
	r.sessions.Add(key, s)
	r.trie.insert(s)
	r.shrink()
}

// shrink evicts the least recently used sessions while they keep too many hashes, but never the last one.
func (r *Conversation) shrink() {
	for r.trie.links > maxLinks && r.sessions.Len() > 1 {
		r.sessions.RemoveOldest()
	}
}

func (r *Conversation) touch(s *session) {
	r.tick++
	s.used = r.tick
	r.trie.touch(s)
}

// Forget implements Router: conversations of the instance are placed anew.
func (r *Conversation) Forget(instance string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range r.sessions.Keys() {
		if s, ok := r.sessions.Peek(key); ok && s.instance == instance {
			r.sessions.Remove(key)
		}
	}
}

// Stats implements Router.
func (r *Conversation) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.stats()
	st.Sessions = r.sessions.Len()
	return st
}

// hash chains the content's blocks. The last unit is not hashed; the last block may be partial.
func (r *Conversation) hash(req *Request) []blockhash.Hash {
	units, skip, parent := req.Tokens, r.skip, blockhash.Root("ids", "", req.Salt)
	if units == nil || req.Learned && !r.useIDs {
		units, skip, parent = []rune(req.Text), r.skip*codePointsPerToken, blockhash.Root("text", "", req.Salt)
	}
	units = units[min(skip, len(units)):]
	if len(units) < 2 {
		return []blockhash.Hash{}
	}
	units = units[:len(units)-1]
	path := make([]blockhash.Hash, 0, (len(units)+r.block-1)/r.block)
	for len(units) > 0 {
		n := min(r.block, len(units))
		parent = blockhash.Next(parent, units[:n])
		path = append(path, parent)
		units = units[n:]
	}
	return path
}
