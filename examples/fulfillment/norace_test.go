//go:build !race

package main

// raceEnabled is true in a test with the race detector, which makes the long stream take minutes.
const raceEnabled = false
