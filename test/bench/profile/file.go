package profile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Profile is the file that the simulator reads.
type Profile struct {
	Kind         string       `json:"kind"` // always "tandem-profile"
	Version      int          `json:"version"`
	Model        string       `json:"model"`
	Device       string       `json:"device"`
	Coefficients Coefficients `json:"coefficients"`
	Fit          Fit          `json:"fit"`
}

// Kind and Version of the files that this package writes.
const (
	Kind    = "tandem-profile"
	Version = 1
)

// Make fits a profile to points, which must tell all of it.
func Make(model, device string, points []Point) (*Profile, error) {
	c, fit, err := Solve(points)
	if err != nil {
		return nil, err
	}
	if err := varied(points); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return &Profile{Kind: Kind, Version: Version, Model: model, Device: device, Coefficients: c, Fit: fit}, nil
}

// Write writes the file.
func (p *Profile) Write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(p)
}

// Read reads a file of Write. Errors name what is wrong with it.
func Read(r io.Reader) (*Profile, error) {
	var p Profile
	var given struct {
		Coefficients map[string]json.RawMessage `json:"coefficients"`
	}
	data, err := io.ReadAll(io.LimitReader(r, maxFile))
	if err == nil {
		err = strict(data, &p)
	}
	if err != nil {
		return nil, fmt.Errorf("profile: %w: make it with bench profile", err)
	}
	_ = json.Unmarshal(data, &given) // it was read just now
	if p.Kind != Kind || p.Version != Version {
		return nil, fmt.Errorf("profile: kind %q version %d, want %q version %d: make it again with bench profile", p.Kind, p.Version, Kind, Version)
	}
	for _, name := range coefficientNames {
		if _, ok := given.Coefficients[name]; !ok {
			return nil, fmt.Errorf("profile: coefficients have no %s: make it again with bench profile", name)
		}
	}
	if err := p.Coefficients.check(); err != nil {
		return nil, err
	}
	return &p, nil
}

// check refuses what no device has.
func (c Coefficients) check() error {
	if c == (Coefficients{}) {
		return errors.New("profile: all coefficients are 0: no device is so fast")
	}
	for i, v := range c.list() {
		if !(v >= 0 && v <= mostSeconds) {
			return fmt.Errorf("profile: %s is %g, want 0 to %g seconds", coefficientNames[i], v, mostSeconds)
		}
	}
	return nil
}

// varied tells whether points differ in all that a profile must tell apart: what never changes would cost nothing.
func varied(points []Point) error {
	for _, f := range []struct {
		name string
		of   func(*Point) int
	}{
		{"ctx_tokens", func(p *Point) int { return p.CtxTokens }},
		{"gen_requests", func(p *Point) int { return p.GenRequests }},
		{"gen_context", func(p *Point) int { return p.GenContext }},
	} {
		first := f.of(&points[0])
		if !slices.ContainsFunc(points, func(p Point) bool { return f.of(&p) != first }) {
			return fmt.Errorf("%s is %d in all iterations, so that nothing tells what it costs: measure others too", f.name, first)
		}
	}
	return nil
}

// coefficientNames are the keys of the file, in the order of list.
var coefficientNames = []string{"iteration_s", "ctx_token_s", "gen_request_s", "gen_context_token_s", "ctx_attention_s"}

const (
	maxFile     = 1 << 20
	mostSeconds = 3600.0 // of a coefficient: above it stands no time but a mistake
)

// strict decodes one JSON object without members that p lacks, and nothing behind it.
func strict(data []byte, p *Profile) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(p); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("the file ends before the profile does")
		}
		return err
	}
	if dec.More() {
		return errors.New("something follows the profile")
	}
	return nil
}

// line is what ReadPoints looks for in a line of a check's output.
type line struct {
	Step   string `json:"step"`
	Model  string `json:"model"`
	Device string `json:"device"`
	Point
}

// ReadPoints takes the iterations out of the JSON lines of the GPU check: those
// with step "iteration". Model and device are the last ones that such a line
// names. Other lines are skipped.
func ReadPoints(r io.Reader) (points []Point, model, device string, err error) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for n := 1; in.Scan(); n++ {
		if len(in.Bytes()) == 0 || in.Bytes()[0] != '{' {
			continue
		}
		var l line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			return nil, "", "", fmt.Errorf("line %d: %w", n, err)
		}
		if l.Step != "iteration" {
			continue
		}
		points = append(points, l.Point)
		if l.Model != "" {
			model = l.Model
		}
		if l.Device != "" {
			device = l.Device
		}
	}
	if err := in.Err(); err != nil {
		return nil, "", "", err
	}
	if len(points) == 0 {
		return nil, "", "", fmt.Errorf("no line has \"step\": \"iteration\"")
	}
	return points, model, device, nil
}

// WriteLine writes a point as one line that ReadPoints reads.
func (p Point) WriteLine(w io.Writer, model, device string) error {
	return json.NewEncoder(w).Encode(line{Step: "iteration", Model: model, Device: device, Point: p})
}
