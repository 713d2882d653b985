//go:build cuda

package gpu

/*
#include "companion.h"
*/
import "C"

import (
	"errors"
	"fmt"
)

// Graph is captured work, ready to be launched as one.
type Graph struct {
	h     C.CUgraphExec
	nodes int
}

// Capture records what fn queues into the stream, and into streams that wait for its events and
// come back to it, instead of running it. fn must not wait for the device or allocate. Arguments of
// launches are recorded by value: what changes from launch to launch must lie in device memory.
// Everything that the work touches must stay allocated as long as the graph.
func (s *Stream) Capture(fn func() error) (*Graph, error) {
	if err := check(C.cuStreamBeginCapture(s.c(), C.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "begin a capture"); err != nil {
		return nil, err
	}
	ferr := s.guarded(fn)
	var g C.CUgraph
	err := check(C.cuStreamEndCapture(s.c(), &g), "end a capture")
	if g != nil {
		defer C.cuGraphDestroy(g)
	}
	if ferr != nil || err != nil {
		// A failed call inside also ends the capture; its own error says more.
		return nil, errors.Join(ferr, err)
	}
	if g == nil {
		return nil, errors.New("cuda: the capture recorded no graph")
	}
	return instantiate(g)
}

// guarded runs fn; when it panics the capture ends before the panic goes on.
func (s *Stream) guarded(fn func() error) error {
	ok := false
	defer func() {
		if !ok {
			var g C.CUgraph
			C.cuStreamEndCapture(s.c(), &g)
			if g != nil {
				C.cuGraphDestroy(g)
			}
		}
	}()
	err := fn()
	ok = true
	return err
}

func instantiate(g C.CUgraph) (*Graph, error) {
	var n C.size_t
	if err := check(C.cuGraphGetNodes(g, nil, &n), "count the nodes of a graph"); err != nil {
		return nil, err
	}
	out := &Graph{nodes: int(n)}
	if err := check(C.cuGraphInstantiateWithFlags(&out.h, g, 0), "make a graph of %d nodes ready", n); err != nil {
		return nil, err
	}
	return out, nil
}

// Nodes is the number of kernels, copies and other work in the graph.
func (g *Graph) Nodes() int { return g.nodes }

// Upload prepares the graph on the device, so that its first launch is as fast as later ones.
func (s *Stream) Upload(g *Graph) error {
	return check(C.cuGraphUpload(g.h, s.c()), "upload a graph of %d nodes", g.nodes)
}

// Run queues the graph. Launches of one graph never overlap.
func (s *Stream) Run(g *Graph) error {
	if r := C.cuGraphLaunch(g.h, s.c()); r != C.CUDA_SUCCESS {
		return refusal(int(r), fmt.Sprintf("launch a graph of %d nodes", g.nodes))
	}
	return nil
}

// Capturing tells whether the stream is recorded at present.
func (s *Stream) Capturing() (bool, error) {
	var st C.CUstreamCaptureStatus
	err := check(C.cuStreamIsCapturing(s.c(), &st), "ask whether a stream captures")
	return st != C.CU_STREAM_CAPTURE_STATUS_NONE, err
}

// Free gives the graph back. Work that was launched still runs.
func (g *Graph) Free() error {
	if g.h == nil {
		return nil
	}
	h := g.h
	g.h = nil
	return check(C.cuGraphExecDestroy(h), "free a graph")
}
