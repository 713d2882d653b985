package router

// Keeper is a router that remembers at which instance a conversation lives. Frontends that serve the same workers tell each
// other what theirs know, by routing id.
type Keeper interface {
	Router
	// Home returns the instance of a conversation, "" = not known.
	Home(id string) (instance string)
	// Settle gives a conversation a home that was found elsewhere; the instance may be gone.
	Settle(id, instance string)
}

// Home implements Keeper.
func (r *Conversation) Home(id string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.sessions.Peek(sessionKey{id: id}); ok {
		return s.instance
	}
	return ""
}

// Settle implements Keeper.
func (r *Conversation) Settle(id, instance string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record(sessionKey{id: id}, instance, nil)
}

// Home implements Keeper.
func (r *Hybrid) Home(id string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, _ := r.homes.Peek(id)
	return at
}

// Settle implements Keeper.
func (r *Hybrid) Settle(id, instance string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.homes.Add(id, instance)
}
