// Package page replaces the measured parts of a page, each of which stands between
// the marks <!-- NAME --> and <!-- end of NAME -->, lines of their own. What is
// outside of marks is written by hand and stays.
package page

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"tandem/test/bench/result"
)

// begin and end are a part's marks.
func begin(part string) string { return "<!-- " + part + " -->\n" }
func end(part string) string   { return "<!-- end of " + part + " -->" }

// Replace returns a page with text as its part. An error names the marks that are
// missing, there twice, or in another order.
func Replace(page, part, text string) (string, error) {
	b, e := begin(part), end(part)
	i, j := strings.Index(page, b), strings.Index(page, e)
	if i < 0 || j < i || strings.Count(page, b) != 1 || strings.Count(page, e) != 1 {
		return "", fmt.Errorf("no place for %s: %q and, below it, %q must be there once", part, strings.TrimSpace(b), e)
	}
	return page[:i+len(b)] + strings.TrimSpace(text) + "\n" + page[j:], nil
}

// Write replaces a part of a file.
func Write(path, part, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	page, err := Replace(string(old), part, text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(page), 0o644) //nolint:wrapcheck,gosec // it names the file; pages are for all to read
}

// Part is what stands between two marks.
type Part struct{ Name, Text string }

var mark = regexp.MustCompile(`(?m)^<!-- (end of )?([a-z-]+) -->$`)

// Parts lists the parts of a page. An error names the first mark that does not go with the one before it.
func Parts(page string) (list []Part, err error) {
	open, from := "", 0
	for _, m := range mark.FindAllStringSubmatchIndex(page, -1) {
		name, ends := page[m[4]:m[5]], m[2] >= 0
		switch {
		case ends && name != open:
			return nil, fmt.Errorf("%s ends, and did not begin", name)
		case ends:
			list, open = append(list, Part{name, strings.TrimSpace(page[from:m[0]])}), ""
		case open != "":
			return nil, fmt.Errorf("%s begins, and %s has not ended", name, open)
		default:
			open, from = name, m[1]
		}
	}
	if open != "" {
		return nil, fmt.Errorf("%s does not end", open)
	}
	return list, nil
}

// Machine is the line below a table: where it was measured, with a number of threads, and what else ran. before is the
// machine as it was when the measurement began.
func Machine(before result.Hardware, threads int) string {
	return fmt.Sprintf("%s, %d threads, %s; load average %s before, %s after.", before.CPU, threads, before.OS, before.Load, result.Machine().Load)
}

// Version of a program that pip has installed into an environment, by the program's path there; empty if it is not known.
func Version(program string) string {
	name := filepath.Base(program)
	found, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(program)), "lib", "python3*", "site-packages", strings.ReplaceAll(name, "-", "_")+"-*.dist-info"))
	if len(found) != 1 {
		return ""
	}
	_, version, _ := strings.Cut(strings.TrimSuffix(filepath.Base(found[0]), ".dist-info"), "-")
	return version
}
