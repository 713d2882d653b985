package page

import (
	"strings"
	"unicode/utf8"
)

// Table is a Markdown table whose columns are aligned as text, too. The first row is the header; rows may be shorter.
func Table(rows ...[]string) string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 1)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var out strings.Builder
	for n, row := range rows {
		for i, w := range widths {
			cell := ""
			if i < len(row) {
				cell = row[i]
			}
			out.WriteString("| " + cell + strings.Repeat(" ", w-utf8.RuneCountInString(cell)+1))
		}
		out.WriteString("|\n")
		if n == 0 {
			for _, w := range widths {
				out.WriteString("|" + strings.Repeat("-", w+2))
			}
			out.WriteString("|\n")
		}
	}
	return out.String()
}
