package comm

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"tandem/engine/comm/commpb"
)

// Join serves one leaf for the life of the group.
func (l *Listener) Join(stream commpb.Lockstep_JoinServer) error {
	nonce := secret()
	err := stream.Send(&commpb.RootMessage{Kind: &commpb.RootMessage_Challenge{
		Challenge: &commpb.Challenge{Version: l.cfg.version, Nonce: nonce},
	}})
	if err != nil {
		return err
	}
	c := &leafConn{stream: stream, steps: make(chan *commpb.Step, 2)}
	hello, gone := make(chan *commpb.Hello, 1), make(chan struct{})
	l.bg.Add(1)
	go func() {
		defer l.bg.Done()
		defer close(gone)
		c.left = l.listen(c, hello)
	}()
	timer := time.NewTimer(l.cfg.JoinTimeout)
	defer timer.Stop()
	select {
	case m := <-hello:
		if refusal := l.admit(c, m, nonce); refusal != nil {
			return c.send(&commpb.RootMessage{Kind: &commpb.RootMessage_Refusal{Refusal: refusal}})
		}
	case <-gone:
		return c.left
	case <-timer.C:
		return errors.New("no hello in time")
	case <-l.hub.done:
		return nil
	}
	return l.serve(c, gone)
}

// listen reads what a leaf sends: one hello, then messages of the running group.
func (l *Listener) listen(c *leafConn, hello chan<- *commpb.Hello) error {
	m, err := c.stream.Recv()
	if err != nil {
		return err
	}
	if m.GetHello() == nil {
		return errors.New("the first message is no hello")
	}
	hello <- m.GetHello()
	for {
		m, err := c.stream.Recv()
		if err != nil {
			return err
		}
		select {
		case <-l.started:
			l.root.received(c, m)
		default:
			return errors.New("a message before the start")
		}
	}
}

// admit checks a hello and takes the leaf in, or says why not.
func (l *Listener) admit(c *leafConn, m *commpb.Hello, nonce []byte) *commpb.Refusal {
	c.span = Span{int(m.GetFirst()), int(m.GetLast())}
	l.mu.Lock()
	reason := l.objection(c.span, m, nonce)
	if reason != "" {
		if len(l.refusals) < maxRefusals && !slices.Contains(l.refusals, reason) {
			l.refusals = append(l.refusals, reason)
		}
		l.mu.Unlock()
		l.tell(reason)
		return &commpb.Refusal{Reason: reason}
	}
	c.token = secret()
	l.joined = append(l.joined, c)
	slices.SortFunc(l.joined, func(a, b *leafConn) int { return a.span.First - b.span.First })
	l.mu.Unlock()
	err := c.send(&commpb.RootMessage{Kind: &commpb.RootMessage_Welcome{Welcome: &commpb.Welcome{
		DataPort: uint32(tcpPort(l.data.Addr())), Token: c.token,
		Mac: sign(l.cfg.Key, purposeWelcome, nonce, m.GetNonce(), c.span),
	}}})
	if err != nil {
		l.dismiss(c)
		return &commpb.Refusal{Reason: err.Error()}
	}
	l.tell("")
	return nil
}

// tell reports who is missing.
func (l *Listener) tell(refused string) {
	if l.cfg.OnJoin == nil {
		return
	}
	l.mu.Lock()
	missing := l.missing()
	l.mu.Unlock()
	l.cfg.OnJoin(Joining{Missing: missing, Refused: refused})
}

// settingsDiff names the first key in which a process differs from the root.
func settingsDiff(theirs, ours string, epoch, want uint32) string {
	a, b := strings.Split(theirs, "\n"), strings.Split(ours, "\n")
	for i := range max(len(a), len(b)) {
		switch {
		case i >= len(a) || i >= len(b):
			return "settings that the root does not know, or the other way round: use the same build"
		case a[i] != b[i]:
			key, value, _ := strings.Cut(b[i], "=")
			if other, mine, _ := strings.Cut(a[i], "="); other == key {
				return fmt.Sprintf("%s %s, rank 0 has %s: use the same file, flags and model", key, cut(mine), cut(value))
			}
			return "other settings than the root: use the same build"
		}
	}
	return fmt.Sprintf("config epoch %d, the root %d", epoch, want)
}

func cut(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

// objection says why a leaf does not fit, nothing if it does.
func (l *Listener) objection(s Span, m *commpb.Hello, nonce []byte) string {
	switch {
	case m.GetVersion() != l.cfg.version:
		return fmt.Sprintf("%v %s protocol version %d, the root %d", s, s.verb("speaks", "speak"), m.GetVersion(), l.cfg.version)
	case !signed(l.cfg.Key, purposeJoin, nonce, m.GetNonce(), s, m.GetMac()):
		return fmt.Sprintf("%v %s another internal_request_auth_key than the root", s, s.verb("has", "have"))
	case len(l.cfg.Key) == 0 && len(m.GetMac()) > 0:
		return fmt.Sprintf("%v %s an internal_request_auth_key, the root has none", s, s.verb("has", "have"))
	case int(m.GetSize()) != l.cfg.Size:
		return fmt.Sprintf("%v %s %d ranks in all, the root %d", s, s.verb("expects", "expect"), m.GetSize(), l.cfg.Size)
	case m.GetConfigEpoch() != l.cfg.ConfigEpoch:
		return fmt.Sprintf("%v %s %s", s, s.verb("has", "have"), settingsDiff(m.GetSettings(), l.cfg.Settings, m.GetConfigEpoch(), l.cfg.ConfigEpoch))
	}
	if err := l.cfg.checkSpan(s); err != nil {
		return err.Error()
	}
	if s.First <= l.hub.span.Last {
		return fmt.Sprintf("%v %s asked for, but the root hosts %v", s, s.verb("is", "are"), l.hub.span)
	}
	if c := l.holder(s); c != nil {
		return fmt.Sprintf("%v %s asked for, but another process has joined with %v", s, s.verb("is", "are"), c.span)
	}
	return ""
}

// dismiss frees the ranks of a leaf that went before the group was complete.
func (l *Listener) dismiss(c *leafConn) (complete bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.complete:
		return true
	default:
	}
	l.joined = slices.DeleteFunc(l.joined, func(o *leafConn) bool { return o == c })
	c.data.close()
	if l.cfg.OnJoin != nil {
		go l.tell("") // the lock is held here
	}
	return false
}

// serve keeps a leaf's stream until the group ends.
func (l *Listener) serve(c *leafConn, gone <-chan struct{}) error {
	started := l.started
	for {
		select {
		case <-started:
			started = nil
			if err := c.send(&commpb.RootMessage{Kind: &commpb.RootMessage_Start{Start: &commpb.Start{}}}); err != nil {
				l.hub.fail(l.hub.lost(c.span, err))
			}
		case <-gone:
			if !l.dismiss(c) {
				return nil
			}
			err := c.left
			if errors.Is(err, io.EOF) {
				err = errors.New("the process left")
			}
			l.hub.fail(l.hub.lost(c.span, err))
			return nil
		case <-l.hub.done:
			l.farewell(c, gone)
			return nil
		}
	}
}

// farewell tells a leaf why the group is over and gives it a moment to leave.
func (l *Listener) farewell(c *leafConn, gone <-chan struct{}) {
	go func() {
		_ = c.send(&commpb.RootMessage{Kind: &commpb.RootMessage_Failure{Failure: errorFailure(l.hub.err)}})
	}()
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-gone:
	}
}
