// Package deliverypb holds the messages that the ranks of an instance gather.
// The code is generated from delivery.proto.
package deliverypb

//go:generate protoc --go_out=. --go_opt=paths=source_relative delivery.proto
