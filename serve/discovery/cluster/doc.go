// Package cluster keeps the registrations of a cluster's workers: what a worker writes of itself (Registrar), where it is
// kept (Storage, served over HTTP by a frontend; package etcd has the other back end), and how a frontend follows it.
//
// A registration is a key with a time to live that its worker keeps refreshing. Example: with a heartbeat of 5 s and a TTL of
// 10 s, a worker that is killed is gone from every frontend's list after at most 10 s, and one that leaves in good order at once.
package cluster
