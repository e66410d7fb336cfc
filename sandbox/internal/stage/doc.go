// Package stage holds what this program does as somebody else, when it is
// executed again: the container's own initialisation (libcontainer executes
// the program as "init"), the first stage, which waits inside the finished
// container until the host has read the walls back from the kernel and then
// becomes the real program, and the step into a user namespace.
//
// All of it runs before the rest of the program is initialised, because it
// happens on every start: the first stage before Go's runtime, the others from
// an init function. For the same reason the package imports nothing but
// libcontainer and golang.org/x/sys. It knows nothing of specs, evidence or
// policy.
package stage
