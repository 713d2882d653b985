package plot

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// canvas is a grid of braille characters, each two dots wide and four high.
type canvas struct {
	w, h  int // characters
	cells []rune
	owner []int // series that was there last
}

// dots are the bits of a braille character by row and column.
var dots = [4][2]rune{{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}

func (c *canvas) set(px, py, who int) {
	if px < 0 || py < 0 || px >= 2*c.w || py >= 4*c.h {
		return
	}
	at := py/4*c.w + px/2
	c.cells[at] |= dots[py%4][px%2]
	c.owner[at] = who
}

// line joins two dots.
func (c *canvas) line(x0, y0, x1, y1, who int) {
	n := max(abs(x1-x0), abs(y1-y0), 1)
	for i := range n + 1 {
		c.set(x0+(x1-x0)*i/n, y0+(y1-y0)*i/n, who)
	}
}

func abs(v int) int { return max(v, -v) }

// ansi are terminal colours by series.
var ansi = []string{"34", "31", "32", "35", "33", "36", "90"}

// Text draws the chart for a terminal of columns, rows lines high without title and axis; colour uses escape codes.
func (c *Chart) Text(columns, rows int, colour bool) string {
	x, y := c.axes()
	marks := y.ticks(max(2, rows/3))
	margin := 0
	for _, t := range marks {
		margin = max(margin, utf8.RuneCountInString(t.text))
	}
	cv := &canvas{w: max(10, columns-margin-2), h: max(2, rows)}
	cv.cells, cv.owner = make([]rune, cv.w*cv.h), make([]int, cv.w*cv.h)
	for i := range c.Series {
		c.Series[i].text(cv, x, y, i)
	}
	labels := map[int]string{}
	for _, t := range marks {
		labels[int((1-t.at)*float64(cv.h-1)+0.5)] = t.text
	}
	var b strings.Builder
	b.WriteString(c.Title + c.names(colour) + "\n")
	for r := range cv.h {
		fmt.Fprintf(&b, "%*s ", margin, labels[r])
		b.WriteString("│")
		cv.row(&b, r, colour)
		b.WriteString("\n")
	}
	b.WriteString(strings.Repeat(" ", margin+1) + "└" + strings.Repeat("─", cv.w) + "\n")
	b.WriteString(ruler(x, margin+2, cv.w) + "\n")
	fmt.Fprintf(&b, "%s%s (up: %s)\n", strings.Repeat(" ", margin+2), c.X, c.Y)
	return b.String()
}

// names is the legend.
func (c *Chart) names(colour bool) string {
	var out strings.Builder
	for i, s := range c.Series {
		if s.Name == "" {
			continue
		}
		out.WriteString("  ")
		out.WriteString(paint("■ "+s.Name, i, colour))
	}
	return out.String()
}

func paint(text string, series int, colour bool) string {
	if !colour {
		return text
	}
	return "\x1b[" + ansi[series%len(ansi)] + "m" + text + "\x1b[0m"
}

// row writes a line of the canvas.
func (c *canvas) row(b *strings.Builder, r int, colour bool) {
	for k := range c.w {
		at := r*c.w + k
		if c.cells[at] == 0 {
			b.WriteByte(' ')
			continue
		}
		b.WriteString(paint(string(0x2800+c.cells[at]), c.owner[at], colour))
	}
}

// ruler writes the marks of the horizontal axis.
func ruler(x axis, indent, w int) string {
	line := []rune(strings.Repeat(" ", indent+w+8))
	free := 0
	for _, t := range x.ticks(max(2, w/12)) {
		text := []rune(t.text)
		at := max(0, indent+int(t.at*float64(w-1))-len(text)/2)
		if at < free || at+len(text) > len(line) {
			continue
		}
		copy(line[at:], text)
		free = at + len(text) + 1
	}
	return strings.TrimRight(string(line), " ")
}

func (s *Series) text(cv *canvas, x, y axis, who int) {
	first := true
	var lx, ly int
	for _, p := range s.Points {
		u, okX := x.of(p.X)
		v, okY := y.of(p.Y)
		if !okX || !okY {
			continue
		}
		px, py := int(u*float64(2*cv.w-1)+0.5), int((1-v)*float64(4*cv.h-1)+0.5)
		switch {
		case s.Dots || first:
			cv.set(px, py, who)
		case s.Steps:
			cv.line(lx, ly, px, ly, who)
			cv.line(px, ly, px, py, who)
		default:
			cv.line(lx, ly, px, py, who)
		}
		lx, ly, first = px, py, false
	}
}

// Spark draws values as a line of blocks of at most columns.
func Spark(values []float64, columns int) string {
	if len(values) > columns {
		values = values[len(values)-columns:]
	}
	high := 0.0
	for _, v := range values {
		high = max(high, v)
	}
	levels := []rune("▁▂▃▄▅▆▇█")
	out := make([]rune, len(values))
	for i, v := range values {
		k := 0
		if high > 0 {
			k = min(len(levels)-1, int(max(0, v)/high*float64(len(levels))))
		}
		out[i] = levels[k]
	}
	return string(out)
}
