// Package plot draws charts: as SVG to put into a page that is opened from disk,
// and as text for a terminal. Equal charts give equal bytes.
package plot
