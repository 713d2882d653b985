//go:build cuda

package gpu

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDevices(t *testing.T) {
	all, err := Devices()
	must(t, err)
	for i, d := range all {
		if d.Ordinal != i || d.Name == "" || d.Capability < 80 || d.Total <= 0 || d.Multi <= 0 || d.Shared < 48<<10 || d.MaxThreads < 1024 {
			t.Errorf("device %d: %+v", i, d)
		}
		if s := d.String(); !strings.Contains(s, d.Name) {
			t.Errorf("String: %q", s)
		}
	}
	if _, err := Open(len(all)); err == nil || !strings.Contains(err.Error(), "this machine has 0 to") {
		t.Errorf("Open of a device too many: %v", err)
	}
	if _, err := Open(-1); err == nil {
		t.Error("Open(-1) succeeded")
	}
}

func TestDoRunsOnOneThread(t *testing.T) {
	d := open(t, 0)
	var thread int
	must(t, d.Do(func() error { thread = unix.Gettid(); return nil }))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				err := d.Do(func() error {
					if id := unix.Gettid(); id != thread {
						t.Errorf("on thread %d, was %d", id, thread)
					}
					return d.Do(d.Sync) // nested: runs at once
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if unix.Gettid() == thread {
		t.Error("the test's own goroutine runs on the device's thread")
	}
}

func TestDoHandsErrorsAndPanicsOn(t *testing.T) {
	d := open(t, 0)
	want := errors.New("mine")
	if err := d.Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("Do: %v", err)
	}
	func() {
		defer func() {
			if p := recover(); p == nil || !strings.Contains(p.(string), "boom") {
				t.Errorf("recovered %v", p)
			}
		}()
		_ = d.Do(func() error { panic("boom") })
	}()
	must(t, d.Do(d.Sync)) // the thread goes on
}

// TestTaskThatEndsItsGoroutine is what FailNow of a test does inside Do.
func TestTaskThatEndsItsGoroutine(t *testing.T) {
	d := open(t, 0)
	ended := make(chan bool)
	go func() {
		defer close(ended)
		_ = d.Do(func() error { runtime.Goexit(); return nil })
		t.Error("Do returned")
	}()
	<-ended
	must(t, d.Do(func() error {
		p, err := d.Alloc(64) // needs the context, on the new thread
		return errors.Join(err, d.Free(p), d.Do(d.Sync))
	}))
}

func TestClose(t *testing.T) {
	d, err := Open(0)
	must(t, err)
	if err := d.Do(d.Close); err == nil {
		t.Error("closed on its own thread")
	}
	must(t, d.Close())
	must(t, d.Close())
	if err := d.Do(func() error { t.Error("ran after Close"); return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("Do after Close: %v", err)
	}
}

// TestTwoRanksOfOneDevice shows that a context stays until its last user is gone.
func TestTwoRanksOfOneDevice(t *testing.T) {
	a, b := open(t, 0), open(t, 0)
	var p Ptr
	must(t, a.Do(func() (err error) { p, err = a.Alloc(64); return err }))
	must(t, b.Close())
	must(t, a.Do(func() error { return errors.Join(a.Write(p, make([]byte, 64)), a.Free(p)) }))
}

func TestOutsideDo(t *testing.T) {
	d := open(t, 0)
	if _, err := d.Alloc(16); err == nil || !strings.Contains(err.Error(), "outside Device.Do") {
		t.Errorf("Alloc on another thread: %v", err)
	}
}

func TestPick(t *testing.T) {
	for _, tc := range []struct {
		capability int
		targets    []int
		want       int
		err        string
	}{
		{90, []int{80, 90}, 1, ""},
		{90, []int{90, 80}, 0, ""},
		{89, []int{80, 90}, 0, ""},
		{120, []int{80, 90}, 1, ""},
		{75, []int{90, 80}, 0, "has compute capability 7.5; the kernels need 8.0"},
		{90, nil, 0, "no kernels"},
	} {
		got, err := Pick(tc.capability, tc.targets)
		if tc.err == "" && (err != nil || got != tc.want) || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("Pick(%d, %v) = %d, %v", tc.capability, tc.targets, got, err)
		}
	}
}
