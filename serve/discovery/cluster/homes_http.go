package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// HomePaths are the routes of the handler of Homes.
var HomePaths = []string{"/homes/find", "/homes/keep", "/homes/changes", "/homes/merge"}

// maxMerge bounds the body of /homes/merge.
const maxMerge = homesAnswer * (2*maxHomeBytes + 64)

// keeping is the body of /homes/keep.
type keeping struct {
	Key      string `json:"key"`
	Instance string `json:"instance"`
	Was      string `json:"was"`
}

// changed is the result of /homes/changes.
type changed struct {
	Seq   uint64 `json:"seq"` // where to go on
	Homes []home `json:"homes"`
}

// Handler serves the homes to other frontends; the routes are those of HomePaths, and who may use them is as for Storage.
func (h *Homes) Handler(access Access) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /homes/find", func(w http.ResponseWriter, r *http.Request) {
		at, _ := h.Find(r.Context(), r.URL.Query().Get("key"))
		answer(w, at != "", at)
	})
	mux.HandleFunc("POST /homes/keep", func(w http.ResponseWriter, r *http.Request) {
		var in keeping
		if json.NewDecoder(r.Body).Decode(&in) != nil {
			fail(w, http.StatusBadRequest, "want a JSON object with key, instance and was as text")
			return
		}
		at, err := h.Keep(r.Context(), in.Key, in.Instance, in.Was)
		if err != nil {
			fail(w, http.StatusBadRequest, "key and instance must have 1 to 512 bytes")
			return
		}
		answer(w, true, at)
	})
	mux.HandleFunc("GET /homes/changes", func(w http.ResponseWriter, r *http.Request) {
		from, err := strconv.ParseUint(r.URL.Query().Get("from"), 10, 64)
		if err != nil {
			fail(w, http.StatusBadRequest, "from must be a number")
			return
		}
		list, next := h.changes(from)
		answer(w, true, changed{next, list})
	})
	mux.HandleFunc("POST /homes/merge", func(w http.ResponseWriter, r *http.Request) {
		var in changed
		if json.NewDecoder(r.Body).Decode(&in) != nil || len(in.Homes) > homesAnswer {
			fail(w, http.StatusBadRequest, fmt.Sprintf("want a JSON object with up to %d homes", homesAnswer))
			return
		}
		for _, at := range in.Homes {
			_, _ = h.Keep(r.Context(), at.Key, at.Instance, "") // what is newer here, or malformed, is left out
		}
		answer(w, true, true)
	})
	return guard(access, time.Now, h.epoch, maxMerge, mux)
}

// HomesClient reaches the homes that another frontend keeps. It mirrors them, so that they outlive that frontend: one that
// has restarted gets them back. Run keeps the mirror fresh. Safe for concurrent use.
type HomesClient struct {
	client *Client
	mirror *Homes
}

// NewHomesClient makes a client; nothing is sent yet.
func NewHomesClient(c ClientConfig) *HomesClient {
	return &HomesClient{client: NewClient(c), mirror: NewHomes()}
}

// Close drops idle connections.
func (c *HomesClient) Close() error { return c.client.Close() }

// Find looks into the mirror and then asks.
func (c *HomesClient) Find(ctx context.Context, key string) (string, error) {
	if at, _ := c.mirror.Find(ctx, key); at != "" {
		return at, nil
	}
	var out struct {
		Result string `json:"result"`
	}
	err := c.client.call(ctx, http.MethodGet, "/homes/find", url.Values{"key": {key}}, nil, func(_ http.Header, body []byte) error {
		return json.Unmarshal(body, &out)
	})
	if errors.Is(err, ErrAbsent) {
		return "", nil
	}
	return out.Result, err
}

// Keep is that of Homes, at the other frontend. While it cannot be reached the mirror keeps it.
func (c *HomesClient) Keep(ctx context.Context, key, instance, was string) (string, error) {
	body, err := json.Marshal(keeping{key, instance, was})
	if err != nil {
		return "", fmt.Errorf("homes: %w", err)
	}
	var out struct {
		Result string `json:"result"`
	}
	err = c.client.call(ctx, http.MethodPost, "/homes/keep", nil, body, func(_ http.Header, body []byte) error {
		return json.Unmarshal(body, &out)
	})
	if err != nil {
		_, _ = c.mirror.Keep(ctx, key, instance, was)
		return "", err
	}
	c.mirror.learn([]home{{Key: key, Instance: out.Result}})
	return out.Result, nil
}

// Run mirrors what changes until ctx ends, and gives a storage that restarted what it has lost. problem is told of each
// failure, and nil after a success.
func (c *HomesClient) Run(ctx context.Context, problem func(error)) {
	epoch, seq := "", uint64(0)
	tick := time.NewTicker(c.client.poll)
	defer tick.Stop()
	for {
		next, at, err := c.follow(ctx, epoch, seq)
		if ctx.Err() != nil {
			return
		}
		if problem(err); err == nil {
			epoch, seq = next, at
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// follow reads all changes since seq of the storage that epoch names; of another one all it has, once it has ours.
func (c *HomesClient) follow(ctx context.Context, epoch string, seq uint64) (string, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, max(c.client.poll, 5*time.Second))
	defer cancel()
	for {
		got, now, err := c.changes(ctx, seq)
		if err != nil {
			return "", 0, err
		}
		if now != epoch && seq > 0 {
			seq = 0
			epoch = ""
			continue
		}
		if now != epoch {
			if err := c.upload(ctx); err != nil {
				return "", 0, err
			}
			epoch = now
		}
		c.mirror.learn(got.Homes)
		seq = got.Seq
		if len(got.Homes) < homesAnswer {
			return epoch, seq, nil
		}
	}
}

func (c *HomesClient) changes(ctx context.Context, from uint64) (out changed, epoch string, err error) {
	var got struct {
		Result changed `json:"result"`
	}
	q := url.Values{"from": {strconv.FormatUint(from, 10)}}
	err = c.client.call(ctx, http.MethodGet, "/homes/changes", q, nil, func(h http.Header, body []byte) error {
		epoch = h.Get(headerEpoch)
		return json.Unmarshal(body, &got)
	})
	return got.Result, epoch, err
}

// upload sends the whole mirror; what the other side has already wins.
func (c *HomesClient) upload(ctx context.Context) error {
	for from := uint64(0); ; {
		list, next := c.mirror.changes(from)
		if len(list) == 0 {
			return nil
		}
		body, err := json.Marshal(changed{Homes: list})
		if err != nil {
			return fmt.Errorf("homes: %w", err)
		}
		if err := c.client.call(ctx, http.MethodPost, "/homes/merge", nil, body, nil); err != nil {
			return err
		}
		from = next
	}
}
