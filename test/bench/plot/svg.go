package plot

import (
	"bytes"
	"fmt"
	"html"
	"strings"
)

// Sizes of an SVG chart, in its own units.
const (
	width, height                = 640, 340
	left, right, top, bottom     = 62, 14, 30, 44
	plotW, plotH                 = width - left - right, height - top - bottom
	legendLine, legendX, dotSize = 15, left + 10, 2.4
)

// colours can be told apart by most who see colours differently.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999933", "#666666"}

// SVG draws the chart. It needs no script, style or font from elsewhere.
func (c *Chart) SVG() []byte {
	var b bytes.Buffer
	x, y := c.axes()
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s" font-family="system-ui,sans-serif" font-size="11">`+"\n",
		width, height, html.EscapeString(c.Title))
	fmt.Fprintf(&b, `<text x="%d" y="18" font-size="13" font-weight="600" fill="currentColor">%s</text>`+"\n", left, html.EscapeString(c.Title))
	for _, t := range x.ticks(8) {
		at := left + t.at*plotW
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="currentColor" stroke-opacity=".12"/><text x="%.1f" y="%d" text-anchor="middle" fill="currentColor">%s</text>`+"\n",
			at, top, at, top+plotH, at, top+plotH+15, t.text)
	}
	for _, t := range y.ticks(6) {
		at := top + (1-t.at)*plotH
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="currentColor" stroke-opacity=".12"/><text x="%d" y="%.1f" text-anchor="end" fill="currentColor">%s</text>`+"\n",
			left, at, left+plotW, at, left-6, at+4, t.text)
	}
	fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="currentColor" stroke-opacity=".4"/>`+"\n", left, top, plotW, plotH)
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" fill="currentColor">%s</text>`+"\n", left+plotW/2, height-8, html.EscapeString(c.X))
	fmt.Fprintf(&b, `<text transform="translate(14,%d) rotate(-90)" text-anchor="middle" fill="currentColor">%s</text>`+"\n", top+plotH/2, html.EscapeString(c.Y))
	for i, s := range c.Series {
		s.draw(&b, x, y, colours[i%len(colours)])
	}
	c.legend(&b)
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func (c *Chart) legend(b *bytes.Buffer) {
	n := 0
	for i, s := range c.Series {
		if s.Name == "" {
			continue
		}
		at := top + 14 + n*legendLine
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="10" height="10" fill="%s"/><text x="%d" y="%d" fill="currentColor">%s</text>`+"\n",
			legendX, at-9, colours[i%len(colours)], legendX+15, at, html.EscapeString(s.Name))
		n++
	}
}

// draw writes one series.
func (s *Series) draw(b *bytes.Buffer, x, y axis, colour string) {
	var path strings.Builder
	last := 0.0
	for i, p := range s.Points {
		u, okX := x.of(p.X)
		v, okY := y.of(p.Y)
		if !okX || !okY {
			continue
		}
		px, py := left+u*plotW, top+(1-v)*plotH
		if i < len(s.Low) && i < len(s.High) {
			lo, ok1 := y.of(s.Low[i])
			hi, ok2 := y.of(s.High[i])
			if ok1 && ok2 {
				fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="1.5"/>`+"\n", px, top+(1-lo)*plotH, px, top+(1-hi)*plotH, colour)
			}
		}
		label := ""
		if i < len(s.Labels) {
			label = "<title>" + html.EscapeString(s.Labels[i]) + "</title>"
		}
		if s.Dots || label != "" {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s" fill-opacity=".6">%s</circle>`+"\n", px, py, dotSize, colour, label)
		}
		if s.Dots {
			continue
		}
		if path.Len() == 0 {
			fmt.Fprintf(&path, "M%.1f %.1f", px, py)
		} else {
			if s.Steps {
				fmt.Fprintf(&path, "L%.1f %.1f", px, last)
			}
			fmt.Fprintf(&path, "L%.1f %.1f", px, py)
		}
		last = py
	}
	if path.Len() > 0 {
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.8"/>`+"\n", path.String(), colour)
	}
}
