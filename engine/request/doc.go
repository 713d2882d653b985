// Package request is the request as the engine sees it: ids, tokens, sampling
// and hand-over parameters, the states of its life and the errors that end it.
// It knows nothing of HTTP, blocks or devices.
package request
