// Package sim runs engine cores in one goroutine under a virtual clock, with a
// fake model that can tell whether every cache slot it reads holds what it
// should, and a fake network that can delay, lose and repeat messages. The same
// seed gives the same run.
package sim
