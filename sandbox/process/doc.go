// Package process runs a sandbox.Spec as an ordinary process, for machines
// that allow no container and for tests that show what such a machine gets.
// It builds no wall that confines: the program can read and write whatever
// the calling user can. Its evidence says so, which makes the mode gated.
//
// What it does hold: the environment is the Spec's only, there are three pipes
// and no other file, resource limits are set, and a watchdog ends a tree that
// uses too much or takes too long. Paths of the Spec that only exist inside a
// container are translated: /provider is the artifact directory, and a mount's
// target is its source.
package process
