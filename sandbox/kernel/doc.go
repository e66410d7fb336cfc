// Package kernel reads what the kernel says of a process and of the machine.
//
// Each file format has one function that turns text into data, with bounds on
// what it reads. On top of them, Inspect checks every wall of package sandbox
// for one process that is held at its first stage, and Probe tells what walls
// the machine could give at all.
//
// Nothing is taken from the process itself and nothing from what was asked to
// be built: a wall stands when the kernel says so. A file that is absent, does
// not parse or is too long makes the wall not stand, with the reason.
package kernel
