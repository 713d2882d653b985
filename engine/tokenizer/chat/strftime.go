package chat

import (
	"fmt"
	"strings"
	"time"
)

// strftime formats now as Python does, for the directives that templates use.
// An unknown directive is copied.
func strftime(now time.Time, format string) string {
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			out.WriteByte(format[i])
			continue
		}
		i++
		unpadded := format[i] == '-' && i+1 < len(format)
		if unpadded {
			i++
		}
		text, ok := directive(now, format[i])
		switch {
		case !ok:
			out.WriteByte('%')
			out.WriteByte(format[i])
		case unpadded:
			out.WriteString(unpad(text))
		default:
			out.WriteString(text)
		}
	}
	return out.String()
}

func unpad(text string) string {
	if short := strings.TrimLeft(text, "0 "); short != "" {
		return short
	}
	return "0"
}

func directive(now time.Time, c byte) (text string, ok bool) {
	layouts := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'b': "Jan", 'h': "Jan", 'B': "January",
		'a': "Mon", 'A': "Monday", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'Z': "MST", 'z': "-0700",
		'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04", 'c': "Mon Jan _2 15:04:05 2006",
		'x': "01/02/06", 'X': "15:04:05",
	}
	if layout, ok := layouts[c]; ok {
		return now.Format(layout), true
	}
	switch c {
	case 'j':
		return fmt.Sprintf("%03d", now.YearDay()), true
	case 'f':
		return fmt.Sprintf("%06d", now.Nanosecond()/1000), true
	case 'u':
		return fmt.Sprint((int(now.Weekday())+6)%7 + 1), true
	case 'w':
		return fmt.Sprint(int(now.Weekday())), true
	case 's':
		return fmt.Sprint(now.Unix()), true
	case '%':
		return "%", true
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	}
	return "", false
}
