package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
)

// headerEpoch tells clients which storage answered: after a restart it is another one, and empty.
const headerEpoch = "X-Disagg-Storage-Epoch"

// maxBody bounds the body of /set: key, value and what JSON adds.
const maxBody = 2 * (maxKeyBytes + maxValueBytes)

// Paths are the routes of Handler.
var Paths = []string{"/set", "/get", "/delete", "/expire", "/get_prefix"}

// Handler serves the storage; the routes are those of Paths.
func (s *Storage) Handler(access Access) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /set", s.set)
	mux.HandleFunc("GET /get", func(w http.ResponseWriter, r *http.Request) {
		value, ok := s.Get(r.URL.Query().Get("key"))
		answer(w, ok, value)
	})
	mux.HandleFunc("DELETE /delete", func(w http.ResponseWriter, r *http.Request) {
		answer(w, s.Delete(r.URL.Query().Get("key")), true)
	})
	mux.HandleFunc("GET /expire", func(w http.ResponseWriter, r *http.Request) {
		ttl, err := strconv.ParseFloat(r.URL.Query().Get("ttl"), 64)
		if err != nil {
			fail(w, http.StatusBadRequest, "ttl must be a number of seconds")
			return
		}
		answer(w, s.Expire(r.URL.Query().Get("key"), seconds(ttl)), true)
	})
	mux.HandleFunc("GET /get_prefix", func(w http.ResponseWriter, r *http.Request) {
		list, _ := s.List(r.URL.Query().Get("key_prefix"))
		if only, _ := strconv.ParseBool(r.URL.Query().Get("keys_only")); only {
			for key := range list {
				list[key] = ""
			}
		}
		answer(w, true, list)
	})
	return guard(access, s.now, s.epoch, maxBody, mux)
}

// guard reads the body, which the signature covers, and lets only those pass who may.
func guard(access Access, now func() time.Time, epoch string, limit int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
		if err != nil {
			fail(w, http.StatusRequestEntityTooLarge, "the body cannot be read or is too long")
			return
		}
		if !access.allows(r, now(), body) {
			fail(w, http.StatusUnauthorized, "the cluster storage takes signed requests, or those of programs on this host")
			return
		}
		w.Header().Set(headerEpoch, epoch)
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

func (s *Storage) set(w http.ResponseWriter, r *http.Request) {
	in := struct {
		Key       string  `json:"key"`
		Value     string  `json:"value"`
		TTL       float64 `json:"ttl"`
		Overwrite bool    `json:"overwrite_if_exists"`
	}{TTL: -1}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Key == "" {
		fail(w, http.StatusBadRequest, "want a JSON object with key and value as text")
		return
	}
	switch err := s.Set(in.Key, in.Value, seconds(in.TTL), in.Overwrite); {
	case errors.Is(err, ErrExists):
		reply(w, http.StatusConflict, false)
	case errors.Is(err, ErrFull):
		fail(w, http.StatusInsufficientStorage, err.Error())
	case err != nil:
		fail(w, http.StatusRequestEntityTooLarge, err.Error())
	default:
		reply(w, http.StatusOK, true)
	}
}

// answer sends a result, or 404 for what is not there.
func answer(w http.ResponseWriter, ok bool, result any) {
	if !ok {
		reply(w, http.StatusNotFound, nil)
		return
	}
	reply(w, http.StatusOK, result)
}

func reply(w http.ResponseWriter, status int, result any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"result": result}) // a client that left is no error
}

func fail(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": message, "type": "cluster_storage"}})
}

// seconds converts a TTL; what is no time of this century lasts for ever, as -1 does.
func seconds(sec float64) time.Duration {
	const century = 100 * 365 * 24 * 3600
	if !(sec > 0 && sec < century) {
		return -1
	}
	return time.Duration(sec * float64(time.Second))
}
