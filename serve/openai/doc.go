// Package openai is the wire: the OpenAI request and response schema with this
// project's additions, its validation, error bodies, server-sent events and
// the signatures on internal fields. Frontend and worker both speak through it
// and it imports nothing else of the project.
//
// A request is decoded once into a Request; its Body keeps every member as the
// client sent it, in order, so that a frontend can relay fields it has never
// heard of:
//
//	req, err := openai.DecodeRequest(openai.Chat, data)
//	leg := req.Body.Clone()
//	leg.Set("stream", json.RawMessage("false"))
//	post(leg.AppendJSON(nil))
package openai
