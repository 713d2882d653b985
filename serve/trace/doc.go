// Package trace keeps what is known of single requests: where their time went
// (Timeline), records that a GET drains (Ring), spans that follow a request
// through frontend and workers (Tracer), and the file of requests for replay
// (Capture). It knows neither frontend nor worker and sees no prompt: token
// counts, times and salted hashes only.
//
//	tl := trace.Timeline{Start: arrived}
//	tl.Add("queue", scheduled)
//	tl.Add("prefill", first)
//	stages := tl.Stages(finished) // they sum to finished - arrived
package trace
