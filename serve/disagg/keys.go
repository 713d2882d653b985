package disagg

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"tandem/serve/openai"
)

// APIKey admits the clients that present it. Its name is the tenant: metrics, logs and workers learn the name and never the
// key.
type APIKey struct {
	Name   string  // letters, digits, dot, dash and underscore
	Key    string  // at least 16 bytes
	Weight float64 // share of places beside other keys, above 0
}

// maxKeyName bounds what becomes a metric label and a part of headers.
const maxKeyName = 64

func validateKeys(keys []APIKey) error {
	names, secrets := map[string]bool{}, map[string]bool{}
	for i, k := range keys {
		at := fmt.Sprintf("api_keys[%d]", i)
		switch {
		case k.Name == "" || len(k.Name) > maxKeyName || strings.ContainsFunc(k.Name, notInName):
			return fmt.Errorf("%s.name: %q needs 1 to %d letters, digits, dots, dashes and underscores", at, k.Name, maxKeyName)
		case names[k.Name]:
			return fmt.Errorf("%s.name: %q is there twice", at, k.Name)
		case len(k.Key) < 16:
			return fmt.Errorf("%s.key: must have at least 16 bytes", at)
		case secrets[k.Key]:
			return fmt.Errorf("%s.key: is that of another name", at)
		case !(k.Weight > 0 && k.Weight <= 1000):
			return fmt.Errorf("%s.weight: %v is outside (0, 1000]", at, k.Weight)
		}
		names[k.Name], secrets[k.Key] = true, true
	}
	return nil
}

func notInName(r rune) bool {
	return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '.' && r != '-' && r != '_'
}

// keyring tells whose key a request presents.
type keyring []ringKey

type ringKey struct {
	name   string
	weight float64
	sum    [sha256.Size]byte
	caches saltmaker // nil = prompts without a cache_salt share their cache with those of other keys
}

// newKeyring reads the keys. With isolate each gets caches of its own, sealed with secret, or without one by the key itself.
func newKeyring(keys []APIKey, isolate bool, secret []byte) (ring keyring) {
	for _, k := range keys {
		r := ringKey{name: k.Name, weight: k.Weight, sum: sha256.Sum256([]byte(k.Key))}
		if isolate {
			r.caches = newSaltmaker(k, secret)
		}
		ring = append(ring, r)
	}
	return ring
}

// nobody is the tenant of all clients where no keys are configured.
var nobody = ringKey{weight: 1}

// errKey says that a request has no valid key.
var errKey = errors.New("no valid API key")

// find returns whose key the request presents as "Authorization: Bearer KEY". How long it takes tells nothing of the keys:
// digests of one length are compared with every one of them.
func (k keyring) find(h http.Header) (ringKey, error) {
	if len(k) == 0 {
		return nobody, nil
	}
	scheme, text, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		text = ""
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(text)))
	found := -1
	for i := range k {
		if subtle.ConstantTimeCompare(sum[:], k[i].sum[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return ringKey{}, errKey
	}
	return k[found], nil
}

// guarded tells whether a path is for holders of a key: what serves requests or tells of the cluster. Probes and scrapers
// get on without.
func guarded(path string) bool {
	return strings.HasPrefix(path, "/v1/") || path == "/cluster_info" || path == "/perf_metrics"
}

// guard lets only holders of a key to what is theirs.
func (s *Server) guard(next http.Handler) http.Handler {
	if len(s.keys) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !guarded(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		k, err := s.keys.find(r.Header)
		if err != nil {
			s.obs.Happened(EventUnauthorized)
			w.Header().Set("WWW-Authenticate", "Bearer")
			e := openai.NewError(http.StatusUnauthorized, openai.CodeInvalidAPIKey, "this needs a valid API key: send Authorization: Bearer KEY")
			e.Type = openai.TypeInvalidRequest
			openai.WriteError(w, e)
			return
		}
		s.obs.Happened(EventKey, k.name)
		next.ServeHTTP(w, r)
	})
}
