package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"tandem/engine/executor"
	"tandem/engine/scheduler"
	"tandem/serve/worker"
)

// Core returns the executor configuration for a role. The caller adds what the
// model decides: Vocab, Blocks, Layout, the effective MaxSeqLen, Namespace,
// Incarnation and Endpoint.
func (w Worker) Core(role executor.Role) executor.Config {
	c := executor.DefaultConfig()
	c.Role, c.Namespace = role, w.KVCache.Namespace
	c.MaxBatch, c.MaxNumTokens, c.MaxSeqLen = w.MaxBatchSize, w.MaxNumTokens, w.MaxSeqLen
	c.BlockTokens = w.KVCache.TokensPerBlock
	c.BlockReuse, c.PartialReuse = w.KVCache.EnableBlockReuse, w.KVCache.EnableBlockReuse && w.KVCache.EnablePartialReuse
	c.ShareInPass, c.EventBuffer = w.KVCache.EnableBlockReuse, w.KVCache.EventBuffer
	c.Reuse, c.MaxTurns = executor.ReusePolicy(w.KVCache.BlockReusePolicy), w.KVCache.MaxNumTurns
	c.Tiers.MinPriority = uint8(w.KVCache.OffloadMinPriority) // sizes are bytes until the model is known
	c.ChunkPrefill = w.EnableChunkedPrefill
	c.Policy, c.Chunking = scheduler.Policy(w.Scheduler.CapacityPolicy), scheduler.Chunking(w.Scheduler.ChunkingPolicy)
	c.Queue = scheduler.Queue(w.Scheduler.QueuePolicy)
	if c.PrefillMixed = w.Scheduler.MaxPrefillMixed; c.PrefillMixed > 0 {
		c.PrefillMixed = max(c.PrefillMixed, c.BlockTokens) // a step moves whole blocks
	}
	c.PrefillPerDecode = w.Scheduler.PrefillPerDecode
	c.MaxQueued, c.QueueTimeout = w.Scheduler.MaxQueued, msec(w.Scheduler.QueueTimeoutMsec)
	if t := w.Transceiver; t != nil {
		c.Lease, c.Attach, c.Progress, c.PeerWait = msec(t.Lease), msec(t.Attach), msec(t.Progress), msec(t.PeerWait)
		c.RecvTotal = msec(t.TransferTimeout)
		c.MaxConcurrentRecv, c.MaxInflightBytes = t.MaxConcurrentRecv, t.MaxInflightBytes
		c.MaxLeasedFraction, c.LocalRecompute = t.MaxLeasedFraction, t.LocalRecompute
	}
	return c
}

// HTTP returns the configuration of the worker's HTTP face. loopback tells that
// its listener is loopback or a unix socket. The caller adds version, admin
// address, metrics and logger.
func (w Worker) HTTP(loopback bool) (worker.Config, error) {
	key, err := Secret("internal_request_auth_key", w.AuthKey)
	if err != nil {
		return worker.Config{}, err
	}
	return worker.Config{
		Key: []byte(key), Trusted: loopback || w.TrustNetwork, Transceiver: w.Transceiver != nil,
		Stall: w.Stall(), ExposeRouting: w.ExposeRouting, ReturnPerf: w.ReturnPerf, PerfRecords: w.PerfRecords, RequestLog: w.Log.Requests(),
	}, nil
}

// Grace is shutdown_grace_sec.
func (w Worker) Grace() time.Duration { return time.Duration(w.ShutdownGrace * float64(time.Second)) }

func msec(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// minSecretBytes is the shortest key that is accepted.
const minSecretBytes = 16

// Secret resolves a secret of the configuration: the text itself, env:NAME or
// file:PATH (white space at the end of the file is dropped). Empty stays empty;
// fewer than 16 bytes is an error, which never shows the secret.
func Secret(key, text string) (string, error) {
	val := text
	if name, ok := strings.CutPrefix(text, "env:"); ok {
		if val = os.Getenv(name); val == "" {
			return "", fmt.Errorf("%s: the environment variable %s is not set", key, name)
		}
	} else if path, ok := strings.CutPrefix(text, "file:"); ok {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("%s: %w", key, err)
		}
		if val = strings.TrimSpace(string(data)); val == "" {
			return "", fmt.Errorf("%s: the file %s is empty", key, path)
		}
	}
	if val != "" && len(val) < minSecretBytes {
		return "", errors.New(key + ": is shorter than 16 bytes, use a longer random one")
	}
	return val, nil
}
