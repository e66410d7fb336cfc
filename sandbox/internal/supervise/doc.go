// Package supervise has what the host does for a started process under either
// runtime: the three pipes with the first stage's handshake, the watchdog for
// limits that no kernel mechanism holds, and the walk of a process tree. It
// knows nothing of walls.
package supervise
