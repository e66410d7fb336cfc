// Package sandbox says what a confined process may touch, what its
// confinement consists of, and what may be claimed once the confinement has
// been seen.
//
// A Spec is what is asked for. A Runtime builds it and gives a Process that is
// held before its own code runs. Evidence is what was read back from the
// kernel about that very process, wall by wall; the Mode follows from the
// evidence and from nothing else. The walls themselves are one table, in
// walls.go.
//
// The package holds data and interfaces only. It knows nothing of providers,
// repositories or policy, and imports no container library: the runtimes in
// sandbox/container and sandbox/process do the work, sandbox/kernel reads the
// facts, sandbox/seccomp makes the filter.
package sandbox
