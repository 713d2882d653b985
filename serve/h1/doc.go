// Package h1 is the HTTP/1.1 client for calls to workers. A frontend has as many calls open as streams, and most of the time
// each of them waits. So a call runs in its caller's goroutine and in no other, and while it waits for bytes it holds no
// buffer: buffers come from a pool when bytes have arrived. What came is handed out where it lies, without a copy.
//
// It does what calls to workers need: POST with a body in memory, kept connections, TLS, chunked and plain answers,
// cancellation at any moment. It follows no redirects, uses no proxies and speaks no HTTP/2.
//
// Direct gives the same sockets to a server.
package h1
