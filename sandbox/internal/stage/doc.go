// Package stage holds the two things that this program does as somebody else:
// the container's own initialisation (libcontainer re-executes the program as
// "init"), and the first stage, which waits inside the finished container
// until the host has read the walls back from the kernel and then becomes the
// real program.
//
// Both run from an init function, before the rest of the program is
// initialised, because they happen on every start. For the same reason the
// package imports nothing but libcontainer and golang.org/x/sys. It knows
// nothing of specs, evidence or policy.
package stage
