package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// stallTimeout ends a download whose server has sent nothing for this long.
const stallTimeout = time.Minute

// attempts bounds how often a broken-off transfer is resumed before giving up.
const attempts = 5

// file is one thing to download.
type file struct {
	url    string
	token  string // bearer token, or empty
	sha256 string // hex, or empty if the server does not say
	path   string // final place; path+".part" holds what has come so far
	label  string
}

// fetch downloads f unless it is there. A part file is continued with a range
// request; when the checksum is wrong the part is dropped and the error says so.
func fetch(ctx context.Context, f file, progress Progress) error {
	if _, err := os.Stat(f.path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return fmt.Errorf("download %s: %w", f.label, err)
	}
	var err error
	for range attempts {
		if err = f.resume(ctx, progress); err == nil {
			return os.Rename(f.part(), f.path)
		}
		var final *finalError
		if errors.As(err, &final) || ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("download %s: %w", f.label, err)
}

// finalError marks an error that another attempt cannot mend.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

func (f file) part() string { return f.path + ".part" }

// resume continues the part file to its end and verifies it.
func (f file) resume(ctx context.Context, progress Progress) error {
	out, err := os.OpenFile(f.part(), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return &finalError{err}
	}
	defer out.Close()
	sum := sha256.New()
	have, err := io.Copy(sum, out)
	if err != nil {
		return &finalError{err}
	}
	body, have, total, err := f.open(ctx, out, sum, have)
	if err != nil {
		return err
	}
	if body != nil {
		defer body.Close()
		w := io.MultiWriter(out, sum, counter{f.label, &have, total, progress})
		if _, err := io.Copy(w, body); err != nil {
			return fmt.Errorf("broke off at byte %d: %w", have, err)
		}
	}
	if total >= 0 && have != total {
		return fmt.Errorf("broke off at byte %d of %d", have, total)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); f.sha256 != "" && got != strings.ToLower(f.sha256) {
		_ = os.Remove(f.part())
		return &finalError{fmt.Errorf("checksum is %s, expected %s; the part was dropped, try again", got, f.sha256)}
	}
	return out.Sync()
}

// open asks for the bytes from have on. It returns a nil body when all are
// there, and starts over (have = 0) when the server cannot continue.
func (f file) open(ctx context.Context, out *os.File, sum hash.Hash, have int64) (io.ReadCloser, int64, int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, nil)
	if err != nil {
		cancel()
		return nil, 0, 0, &finalError{err}
	}
	if f.token != "" {
		req.Header.Set("Authorization", "Bearer "+f.token)
	}
	if have > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
	}
	resp, err := http.DefaultClient.Do(req) //nolint:bodyclose // the watchdog below closes it
	if err != nil {
		cancel()
		return nil, 0, 0, err
	}
	body := &watchdog{body: resp.Body, cancel: cancel, timer: time.AfterFunc(stallTimeout, cancel)}
	switch resp.StatusCode {
	case http.StatusPartialContent:
		return body, have, sizeOf(resp, have), nil
	case http.StatusRequestedRangeNotSatisfiable:
		body.Close()
		return nil, have, have, nil // complete; the checksum decides
	case http.StatusOK:
		sum.Reset()
		if err := out.Truncate(0); err != nil {
			body.Close()
			return nil, 0, 0, &finalError{err}
		}
		if _, err := out.Seek(0, io.SeekStart); err != nil {
			body.Close()
			return nil, 0, 0, &finalError{err}
		}
		return body, 0, sizeOf(resp, 0), nil
	}
	body.Close()
	err = fmt.Errorf("server answered %s", resp.Status)
	if resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests {
		err = &finalError{err}
	}
	return nil, 0, 0, err
}

func sizeOf(resp *http.Response, have int64) int64 {
	if resp.ContentLength < 0 {
		return -1
	}
	return have + resp.ContentLength
}

// watchdog is a body whose every read must come within stallTimeout.
type watchdog struct {
	body   io.ReadCloser
	cancel context.CancelFunc
	timer  *time.Timer
}

func (w *watchdog) Read(p []byte) (int, error) {
	w.timer.Reset(stallTimeout)
	return w.body.Read(p)
}

func (w *watchdog) Close() error {
	w.timer.Stop()
	w.cancel()
	return w.body.Close()
}

// counter reports progress as bytes pass.
type counter struct {
	label    string
	have     *int64
	total    int64
	progress Progress
}

func (c counter) Write(p []byte) (int, error) {
	*c.have += int64(len(p))
	c.progress(c.label, *c.have, c.total)
	return len(p), nil
}
