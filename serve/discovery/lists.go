package discovery

import "slices"

// listKey names a list of routable workers: of a leg those that have a partner, of Mixed those that serve both legs.
type listKey struct {
	leg   Role
	model string // that they serve, "" = any
}

// maxLists bounds the lists that are kept: clients choose the names of models.
const maxLists = 64

// list makes a list, or copies the one made since the last change of the table: requests come more often than changes.
func (t *table) list(key listKey) []Instance {
	list, ok := t.lists[key]
	if !ok {
		if list = t.alone(key.model); key.leg != Mixed {
			list = t.paired(key.leg, key.model)
		}
		if t.lists == nil || len(t.lists) >= maxLists {
			t.lists = map[listKey][]Instance{}
		}
		t.lists[key] = list
	}
	return slices.Clone(list)
}

// serving lists the workers of a leg that may be chosen for a model, in the order of placement. When breakers keep all of
// them away, they count again: a rush of connections, as after the death of another worker, must not close the last way.
func (t *table) serving(leg Role, model string) []Instance {
	if out := t.where(leg, model, (*entry).routable); len(out) > 0 {
		return out
	}
	return t.where(leg, model, (*entry).keptAway)
}

func (t *table) where(leg Role, model string, ok func(*entry) bool) (out []Instance) {
	for _, e := range t.order {
		if e.legs[leg] && ok(e) && e.inst.mayServe(model) {
			out = append(out, e.inst)
		}
	}
	return out
}

// paired lists those of serving that pair with a worker of the other leg.
func (t *table) paired(leg Role, model string) []Instance {
	var out []Instance
	others := t.serving(leg.Other(), model)
	for _, in := range t.serving(leg, model) {
		if len(partners(leg, in, others)) > 0 {
			out = append(out, in)
		}
	}
	return out
}

// alone lists those that serve both legs.
func (t *table) alone(model string) []Instance {
	var out []Instance
	others := t.serving(Context, model)
	for _, in := range t.serving(Generation, model) {
		if slices.ContainsFunc(others, func(o Instance) bool { return o.ID == in.ID }) {
			out = append(out, in)
		}
	}
	return out
}

// partners lists the others that pair with in, itself left out.
func partners(leg Role, in Instance, others []Instance) []Instance {
	var out []Instance
	if in.Info.whole() {
		return nil
	}
	for _, other := range others {
		if ok, _ := pairsAs(leg, in.Info, other.Info); ok && other.ID != in.ID && !other.Info.whole() {
			out = append(out, other)
		}
	}
	return out
}

// whole tells whether a worker takes whole requests only: a mixed one that hands no blocks over.
func (s *ServerInfo) whole() bool { return s.Role == Mixed && s.TransferEndpoint == "" }

// mayServe tells whether the instance lists a model, or lists none at all; "" is any model.
func (i *Instance) mayServe(model string) bool {
	return model == "" || len(i.Models) == 0 || i.HasModel(model)
}
