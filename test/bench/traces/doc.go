// Package traces reads recorded workloads in the formats of the field, checks
// them, and writes them in some. What is wrong with a file is told by line and
// field; nothing is repaired in silence.
//
//	w, report, err := traces.Read(file, traces.Options{Name: "trace.jsonl", Format: traces.Mooncake})
package traces
