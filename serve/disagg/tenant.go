package disagg

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"

	"tandem/serve/openai"
)

// ofTenant sets a name apart from other tenants' equal ones.
func (p *RoutePlan) ofTenant(separator, name string) string {
	if p.Tenant == "" || name == "" {
		return name
	}
	return p.Tenant + separator + name
}

// setTenant makes the request one of a tenant's. Its cache_salt becomes the tenant's own: else one who guesses another's
// could tell by time what that one's prompts begin with. With caches of its own the tenant also has a salt where the client
// sent none. The salt goes into both legs and into the block hashes that routers compare, so neither a worker's cache nor
// the place of a request tells one tenant what another one asked.
func (p *RoutePlan) setTenant(who ringKey) error {
	p.Tenant = who.name
	salt := p.ofTenant("/", p.Req.CacheSalt)
	if who.caches != nil {
		salt = who.caches.salt(p.Req.CacheSalt)
	}
	if salt == p.Req.CacheSalt {
		return nil
	}
	if len(salt) > openai.MaxCacheSalt {
		return openai.Invalid("cache_salt", "cache_salt has %d bytes: with this API key the limit is %d",
			len(p.Req.CacheSalt), openai.MaxCacheSalt-len(who.name)-1)
	}
	p.Req.CacheSalt = salt
	p.Req.Body.Set("cache_salt", openai.AppendString(nil, salt))
	return nil
}

// saltmaker is the secret from which a tenant's salts are made. It never leaves the frontend; frontends with the same
// configuration make the same salts, also after a restart.
type saltmaker []byte

// saltPurpose keeps these digests apart from all others that the same secret makes.
const saltPurpose = "tandem-cache-salt-1\x00"

func newSaltmaker(k APIKey, secret []byte) saltmaker {
	if len(secret) == 0 {
		secret = []byte(k.Key)
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(saltPurpose + k.Name))
	return mac.Sum(nil)
}

// salt returns what workers see in the place of a client's own salt, "" = none: 43 characters that nobody can compute who
// does not have the secret.
func (m saltmaker) salt(own string) string {
	mac := hmac.New(sha256.New, m)
	mac.Write([]byte(own))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
