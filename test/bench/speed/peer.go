package speed

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// Peer is a running program that measures llama.cpp.
type Peer struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	Version string
}

// StartPeer starts the program with a Python that has llama-cpp-python; mode is
// fa or nofa, with and without flash attention.
func StartPeer(python, script, path string, threads int, mode string) (*Peer, error) {
	cmd := exec.Command(python, script, path, strconv.Itoa(threads), mode)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Peer{cmd: cmd, in: in, out: bufio.NewScanner(out)}
	line, err := p.line()
	if err != nil {
		return nil, err
	}
	p.Version = strings.TrimPrefix(line, "ready ")
	return p, nil
}

// Close ends the program.
func (p *Peer) Close() {
	p.in.Close()
	_ = p.cmd.Wait() // it ends with its input
}

func (p *Peer) line() (string, error) {
	if !p.out.Scan() {
		return "", errors.Join(errors.New("the peer ended"), p.out.Err())
	}
	return p.out.Text(), nil
}

// Measure returns tokens per second.
func (p *Peer) Measure(r Row) (float64, error) {
	cmd := fmt.Sprintf("prefill %d\n", r.Depth)
	if r.Steps > 0 {
		cmd = fmt.Sprintf("decode %d %d %d\n", r.Batch, r.Depth, r.Steps)
	}
	if _, err := io.WriteString(p.in, cmd); err != nil {
		return 0, err
	}
	line, err := p.line()
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(line, 64)
}
