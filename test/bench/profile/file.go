package profile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
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

// Make fits a profile to points.
func Make(model, device string, points []Point) (*Profile, error) {
	c, fit, err := Solve(points)
	if err != nil {
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
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	var p Profile
	if err := dec.Decode(&p); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if p.Kind != Kind || p.Version != Version {
		return nil, fmt.Errorf("profile: kind %q version %d, want %q version %d: make it again with bench profile", p.Kind, p.Version, Kind, Version)
	}
	for i, c := range p.Coefficients.list() {
		if c < 0 {
			return nil, fmt.Errorf("profile: coefficient %d is %g, must not be negative", i, c)
		}
	}
	return &p, nil
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
