// Package probe tries to get out of a sandbox, and tells which ways are shut.
//
// It has two sides. Inside is the program cmd/aspis-probe, which Inside runs:
// each Attempt in a process of its own, each harmless where it would succeed,
// each answered with what the kernel said. Outside, Run builds the very
// container that a provider gets, lets the program try, and checks what can be
// checked from outside: canary files are as they were, nobody has connected to
// the host's sockets, nothing survived. An attempt of which nothing is heard
// counts as open.
//
// The package knows walls and specifications, and must not know how a sandbox
// is built.
package probe
