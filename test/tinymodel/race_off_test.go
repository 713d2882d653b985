//go:build !race

package tinymodel

const raceEnabled = false
