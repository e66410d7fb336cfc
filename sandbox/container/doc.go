// Package container builds the walls of a sandbox.Spec with libcontainer, in
// this process and without a daemon, and holds the result at the first stage
// until its evidence has been read.
//
// The order of a start:
//
//	root file system    assembled with plain mounts in a private mount namespace (MountSpace)
//	cgroup              made and limited; the starting thread enters it, so its child is born there
//	libcontainer        namespaces, ids, capabilities, pivot into the root file system
//	first stage         closes files, loads the seccomp filter, says ready (package stage)
//	evidence            read back from the kernel (package kernel), never from what was asked for
//	release             one byte; the first stage becomes the real program
//
// It knows nothing of providers, repositories or policy.
package container
