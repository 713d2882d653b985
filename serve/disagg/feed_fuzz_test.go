package disagg

import (
	"encoding/json"
	"testing"

	"tandem/serve/discovery"
	"tandem/serve/router"
)

// FuzzCacheEvents tells a router whatever a worker may say of its cache, as a list and as single events.
func FuzzCacheEvents(f *testing.F) {
	for _, s := range []string{
		`[{"event_id":0,"attention_dp_rank":1,"data":{"type":"created","hash_algo":"` + router.HashAlgo + `","incarnation":"i"}},` +
			`{"event_id":1,"attention_dp_rank":1,"data":{"type":"stored","blocks":[{"block_hash":7},{"block_hash":18446744073709551615}]}},` +
			`{"event_id":2,"attention_dp_rank":1,"data":{"type":"removed","block_hashes":[7]}}]`,
		`[{"event_id":5,"attention_dp_rank":-1,"gap":true,"data":{"type":"updated"}}]`,
		`[{"event_id":0,"attention_dp_rank":1099511627776,"data":{"type":"created"}},{"event_id":1,"data":{"type":"cleared"}},{"data":{"type":"nothing"}}]`,
	} {
		f.Add([]byte(s))
	}
	in := discovery.Instance{ID: "w", Info: &discovery.ServerInfo{Incarnation: "i"}}
	f.Fuzz(func(_ *testing.T, data []byte) {
		var list []feedEvent
		if json.Unmarshal(data, &list) != nil {
			return
		}
		r := router.NewKVAware(router.Config{})
		for i := range list {
			_ = list[i].tell(r, in) // an error begins the feed anew
		}
		r.Warnings()
		r.Unobserved(in.ID, in.Info.Incarnation)
	})
}
