// Package load sends a workload to a server that speaks the OpenAI API and
// records what comes back, when. It adds little of its own: no goroutine waits
// for a timer or holds a buffer for each stream, and every time point is taken as
// the bytes arrive.
//
//	c := &load.Client{URL: "http://127.0.0.1:8000", API: load.Chat, Model: "m"}
//	records, err := load.Run(ctx, load.Options{Client: c, Workload: w, Schedule: schedule.Options{Mode: schedule.Rate, Rate: 4}, ...})
package load
