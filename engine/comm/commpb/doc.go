// Package commpb holds the generated messages between the processes of one
// instance whose ranks run in lockstep, and the gRPC service that carries them.
package commpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative comm.proto
