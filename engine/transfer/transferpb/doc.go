// Package transferpb holds the generated control messages of a KV hand-over and
// the gRPC service that carries them.
package transferpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative transfer.proto
