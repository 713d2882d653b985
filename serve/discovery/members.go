package discovery

import (
	"cmp"
	"slices"
	"time"
)

// Member is one registration of a worker. An address may have several: that of a process that died and whose registration
// has not expired yet, and that of its successor.
type Member struct {
	WorkerID    string // unique to one registration
	ID, URL     string // of the address, as ParseURL gives them
	Role        Role
	Incarnation string
	Since       int64 // when it was made, unix milliseconds; of several for an address the newest counts
}

// linger is how long an address that left and still answers is watched, for the legs that may run there.
const linger = 10 * time.Minute

// setMembers makes the members the workers of the cluster. It returns the addresses that are new to the table and those to
// probe at once, because a registration of theirs is new. An address that no member names any more is not chosen from now
// on; its legs go on, and it is watched until nothing listens there.
func (t *table) setMembers(now time.Time, list []Member) (joined []*entry, probe []*entry, changed bool) {
	t.lists = nil
	newest := map[string]Member{}
	for _, m := range list {
		old, ok := newest[m.ID]
		if !ok || cmp.Or(cmp.Compare(m.Since, old.Since), cmp.Compare(m.WorkerID, old.WorkerID)) > 0 {
			newest[m.ID] = m
		}
	}
	for _, e := range t.order {
		if _, ok := newest[e.id]; !ok && e.left.IsZero() {
			e.left, changed = now, true
		}
	}
	// In the order of the list, so that the order of placement does not depend on a map.
	for _, m := range list {
		m, ok := newest[m.ID]
		if !ok {
			continue // another registration of an address already seen
		}
		delete(newest, m.ID)
		e := t.byID[m.ID]
		switch {
		case e == nil:
			e = newEntry(m.ID, m.URL)
			t.byID[m.ID] = e
			t.order = append(t.order, e)
			joined = append(joined, e)
		case e.left.IsZero() && e.workerID == m.WorkerID:
			continue
		default:
			probe = append(probe, e)
		}
		changed = true
		e.left, e.workerID = time.Time{}, m.WorkerID
		e.legs = map[Role]bool{Context: m.Role.Serves(Context), Generation: m.Role.Serves(Generation)}
		if e.known { // it may serve the new role or not
			e.refused = e.accept(e.inst.Info)
			e.prepared = e.prepared && e.refused == ""
		}
	}
	return joined, probe, changed
}

// forgotten tells whether a departed address needs no more watching, and if so removes it.
func (t *table) forgotten(now time.Time, e *entry) bool {
	if e.left.IsZero() || !e.gone && now.Sub(e.left) < linger {
		return false
	}
	t.lists = nil
	delete(t.byID, e.id)
	t.order = slices.DeleteFunc(t.order, func(o *entry) bool { return o == e })
	return true
}

// SetMembers makes the given registrations the workers of the cluster; it is called anew whenever they change. Addresses of
// the configuration, if there are any, would leave: a registry has a static list or members.
func (r *Registry) SetMembers(list []Member) {
	r.mu.Lock()
	before := r.memberNames()
	joined, probe, changed := r.table.setMembers(r.now(), list)
	for _, e := range joined {
		r.start(e)
	}
	for _, e := range probe {
		e.ask()
	}
	if changed {
		r.wake()
	}
	after := r.memberNames()
	r.mu.Unlock()
	for id, worker := range after {
		if before[id] == "" {
			r.log.Info("worker joined", "server", id, "worker_id", worker)
		} else if before[id] != worker {
			r.log.Info("worker registered anew", "server", id, "worker_id", worker)
		}
	}
	for id, worker := range before {
		if after[id] == "" {
			r.log.Warn("worker left: it is not chosen any more, its requests go on", "server", id, "worker_id", worker)
		}
	}
}

// memberNames maps the addresses of present members to their worker ids. The caller holds mu.
func (r *Registry) memberNames() map[string]string {
	out := map[string]string{}
	for _, e := range r.table.order {
		if e.left.IsZero() {
			out[e.id] = e.workerID
		}
	}
	return out
}

// SetWarning shows a finding of the caller's in /cluster_info until it is cleared with an empty message.
func (r *Registry) SetWarning(code, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.extra = slices.DeleteFunc(r.extra, func(w Warning) bool { return w.Code == code })
	if message != "" {
		r.extra = append(r.extra, Warning{Code: code, Message: message})
	}
}
