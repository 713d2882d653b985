//go:build cuda

package gpu

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"gorgonia.org/cu"

	"tandem/kernels/cuda/drv"
)

// Device is one GPU as one rank uses it: a reference to its primary context, which libraries share,
// and an OS thread on which that context is current. Two Devices may stand for the same GPU.
type Device struct {
	info   Info
	dev    cu.Device
	ctx    cu.CUContext
	thread atomic.Int64 // id of the OS thread

	tasks chan task
	stop  chan struct{}
	ended chan error
	once  sync.Once
}

type task struct {
	fn   func() error
	done chan result
}

type result struct {
	err   error
	panic any
	stack []byte
	exit  bool // fn ended its goroutine
}

// Open starts a thread for the device with that ordinal and makes its context. The error wraps
// [ErrNoDevice] on a machine without any, and names the ordinals that exist otherwise.
func Open(ordinal int) (*Device, error) {
	if err := drv.Load(); err != nil {
		return nil, err
	}
	n, err := cu.NumDevices()
	if err != nil {
		return nil, wrap(err, "count devices")
	}
	if n == 0 {
		return nil, fmt.Errorf("%w: the driver shows none (is CUDA_VISIBLE_DEVICES empty?)", ErrNoDevice)
	}
	if ordinal < 0 || ordinal >= n {
		return nil, fmt.Errorf("there is no CUDA device %d; this machine has 0 to %d", ordinal, n-1)
	}
	info, err := describe(ordinal)
	if err != nil {
		return nil, err
	}
	d := &Device{
		info:  info,
		tasks: make(chan task),
		stop:  make(chan struct{}),
		ended: make(chan error, 1),
	}
	started := make(chan error)
	go d.loop(d.enter, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return d, nil
}

// Info describes the device.
func (d *Device) Info() Info { return d.info }

// Do runs fn on the device's thread and returns its error; calls of several goroutines take turns.
// A call from within fn runs at once. A panic of fn goes on in the caller. After [Device.Close] it
// returns [ErrClosed] without running fn.
func (d *Device) Do(fn func() error) error {
	if d.onThread() {
		return fn()
	}
	t := task{fn: fn, done: make(chan result, 1)}
	select {
	case d.tasks <- t:
	case <-d.stop:
		return fmt.Errorf("cuda device %d: %w", d.info.Ordinal, ErrClosed)
	}
	r := <-t.done
	if r.exit {
		runtime.Goexit() // as a test's FailNow does
	}
	if r.panic != nil {
		panic(fmt.Sprintf("%v\n\non the thread of CUDA device %d:\n%s", r.panic, d.info.Ordinal, r.stack))
	}
	return r.err
}

// Close waits for the device, gives the context back and ends the thread. What was allocated and
// not freed stays until the last Device of the GPU in this process is closed. Later calls do nothing.
func (d *Device) Close() error {
	if d.onThread() {
		return errors.New("cuda: a device cannot be closed on its own thread")
	}
	var err error
	d.once.Do(func() {
		close(d.stop)
		err = <-d.ended
	})
	return err
}

// onThread tells whether the caller is the goroutine of the device: no other one ever runs on its
// thread.
func (d *Device) onThread() bool { return int64(unix.Gettid()) == d.thread.Load() }

// loop is the device's goroutine. It never unlocks its thread, so the thread ends with it and takes
// its current context along. When a task ends the goroutine another one takes its place.
func (d *Device) loop(enter func() error, started chan<- error) {
	runtime.LockOSThread()
	d.thread.Store(int64(unix.Gettid()))
	err := enter()
	started <- err
	if err != nil {
		return
	}
	done := false
	defer func() {
		if !done {
			go d.loop(d.current, make(chan error, 1))
		}
	}()
	for {
		select {
		case t := <-d.tasks:
			call(t)
		case <-d.stop:
			done = true
			d.ended <- d.leave()
			return
		}
	}
}

func (d *Device) enter() error {
	var err error
	if d.dev, err = cu.GetDevice(d.info.Ordinal); err != nil {
		return wrap(err, "open device %d", d.info.Ordinal)
	}
	if d.ctx, err = d.dev.RetainPrimaryCtx(); err != nil {
		return wrap(err, "make the context of device %d", d.info.Ordinal)
	}
	if err = d.current(); err != nil {
		return errors.Join(err, d.dev.ReleasePrimaryCtx())
	}
	return nil
}

// current makes the context that of the calling thread.
func (d *Device) current() error {
	return wrap(cu.SetCurrentContext(d.ctx), "enter the context of device %d", d.info.Ordinal)
}

func (d *Device) leave() error {
	wait := wrap(cu.Synchronize(), "wait for device %d before closing it", d.info.Ordinal)
	return errors.Join(wait, wrap(d.dev.ReleasePrimaryCtx(), "release the context of device %d", d.info.Ordinal))
}

// call runs a task and answers, whatever way it ends.
func call(t task) {
	r := result{exit: true}
	defer func() {
		if p := recover(); p != nil {
			r = result{panic: p, stack: debug.Stack()}
		}
		t.done <- r
	}()
	r = result{err: t.fn()}
}

// Sync waits until the device did everything that was given to it.
func (d *Device) Sync() error { return wrap(cu.Synchronize(), "wait for device %d", d.info.Ordinal) }
