package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// maxAnswer bounds an answer of the storage.
const maxAnswer = 64 << 20

// Client reaches the storage of a frontend over HTTP. Make it with NewClient.
type Client struct {
	base string // http://host:port or https://host:port
	key  []byte
	http *http.Client
	poll time.Duration // of Follow
	hold time.Duration // see held
	now  func() time.Time
}

// ClientConfig is what a Client needs.
type ClientConfig struct {
	URL  string        // http://host:port or https://host:port
	Key  []byte        // signs requests, empty = unsigned
	TLS  *tls.Config   // for https, nil = the defaults
	Poll time.Duration // between two readings of Follow
	Hold time.Duration // how long keys are kept that a restarted storage has not got yet: the TTL of registrations
	Now  func() time.Time
}

// NewClient makes a client; nothing is sent yet.
func NewClient(c ClientConfig) *Client {
	out := &Client{base: strings.TrimSuffix(c.URL, "/"), key: c.Key, poll: c.Poll, hold: c.Hold, now: c.Now}
	// Not the default client: a proxy for the outside must not see registrations, nor may an answer lead elsewhere.
	out.http = &http.Client{
		Transport:     &http.Transport{IdleConnTimeout: 30 * time.Second, TLSClientConfig: c.TLS},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if out.now == nil {
		out.now = time.Now
	}
	if out.poll <= 0 {
		out.poll = time.Second
	}
	return out
}

// Put stores a value under a key, new or not.
func (c *Client) Put(ctx context.Context, key, value string, ttl time.Duration) error {
	return c.set(ctx, key, value, ttl, true)
}

// Create stores a value under a new key; ErrExists when it is not new.
func (c *Client) Create(ctx context.Context, key, value string, ttl time.Duration) error {
	return c.set(ctx, key, value, ttl, false)
}

func (c *Client) set(ctx context.Context, key, value string, ttl time.Duration, overwrite bool) error {
	body, err := json.Marshal(map[string]any{"key": key, "value": value, "ttl": ttl.Seconds(), "overwrite_if_exists": overwrite})
	if err != nil {
		return fmt.Errorf("cluster storage: %w", err)
	}
	return c.call(ctx, http.MethodPost, "/set", nil, body, nil)
}

// Read returns a key's value; ErrAbsent when it is not there.
func (c *Client) Read(ctx context.Context, key string) (string, error) {
	var out struct {
		Result string `json:"result"`
	}
	err := c.call(ctx, http.MethodGet, "/get", url.Values{"key": {key}}, nil, func(_ http.Header, body []byte) error {
		return json.Unmarshal(body, &out)
	})
	return out.Result, err
}

// Refresh gives a key a new time to live; ErrAbsent when it has expired.
func (c *Client) Refresh(ctx context.Context, key string, ttl time.Duration) error {
	q := url.Values{"key": {key}, "ttl": {strconv.FormatFloat(ttl.Seconds(), 'f', -1, 64)}}
	return c.call(ctx, http.MethodGet, "/expire", q, nil, nil)
}

// Delete drops a key; an absent one is no error.
func (c *Client) Delete(ctx context.Context, key string) error {
	err := c.call(ctx, http.MethodDelete, "/delete", url.Values{"key": {key}}, nil, nil)
	if err == ErrAbsent { //nolint:errorlint // call returns it bare
		return nil
	}
	return err
}

// Close drops idle connections.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// Follow reads the keys below prefix again and again until ctx ends and calls apply with them each time. While the storage
// cannot be reached nothing is applied: the last list holds. problem is told of each failure, and nil after a success.
func (c *Client) Follow(ctx context.Context, prefix string, apply func(map[string]string), problem func(error)) {
	var known held
	tick := time.NewTicker(c.poll)
	defer tick.Stop()
	for {
		list, epoch, err := c.list(ctx, prefix)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			apply(known.merge(c.now(), c.hold, epoch, list))
		}
		problem(err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (c *Client) list(ctx context.Context, prefix string) (list map[string]string, epoch string, err error) {
	var header http.Header
	var out struct {
		Result map[string]string `json:"result"`
	}
	ctx, cancel := context.WithTimeout(ctx, max(c.poll, 2*time.Second))
	defer cancel()
	err = c.call(ctx, http.MethodGet, "/get_prefix", url.Values{"key_prefix": {prefix}}, nil, func(h http.Header, body []byte) error {
		header = h
		return json.Unmarshal(body, &out)
	})
	return out.Result, header.Get(headerEpoch), err
}

// call makes one request; result reads the body of a success.
func (c *Client) call(ctx context.Context, method, path string, q url.Values, body []byte, result func(http.Header, []byte) error) error {
	at := c.base + path
	if len(q) > 0 {
		at += "?" + q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, at, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("cluster storage: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	sign(req, c.key, c.now(), body)
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("cluster storage: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("cluster storage: %w", err)
	}
	switch {
	case resp.StatusCode == http.StatusNotFound && bytes.Contains(data, []byte(`"result"`)):
		return ErrAbsent
	case resp.StatusCode == http.StatusConflict:
		return ErrExists
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("cluster storage at %s: %w", c.base, ErrDenied)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("cluster storage at %s answered %d; is it a frontend with disagg_cluster?", c.base, resp.StatusCode)
	case result == nil:
		return nil
	}
	if err := result(resp.Header, data); err != nil {
		return fmt.Errorf("cluster storage at %s: %w", c.base, err)
	}
	return nil
}

// held is what a follower knows. A storage that restarted is empty until the workers have registered anew; that must not
// look as if they had all left.
type held struct {
	epoch string
	known map[string]string
	until time.Time // keys that the new storage lacks count until then
}

func (h *held) merge(now time.Time, hold time.Duration, epoch string, got map[string]string) map[string]string {
	if h.epoch != "" && epoch != h.epoch {
		h.until = now.Add(hold)
	}
	h.epoch = epoch
	if got == nil {
		got = map[string]string{}
	}
	if now.Before(h.until) {
		for key, value := range maps.All(h.known) {
			if _, ok := got[key]; !ok {
				got[key] = value
			}
		}
	}
	h.known = got
	return got
}
