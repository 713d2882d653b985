package conversation

// View is what one leg's router and worker learn of the conversation.
type View struct {
	ConversationID string // the request's own id, sent to the worker; "" = none
	AffinityKey    string // whose cache to look for instead of the own id; "" = none
}

// RoutingID is the key that conversation-aware placement looks up; "" = unpinned.
func (v View) RoutingID() string {
	if v.AffinityKey != "" {
		return v.AffinityKey
	}
	return v.ConversationID
}
