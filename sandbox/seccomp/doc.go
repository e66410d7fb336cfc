// Package seccomp makes the system call filter of a sandbox: a profile, its
// compilation to the kernel's BPF, and a cache, so that a start only loads
// bytes.
//
// The profile is the one that container engines use by default, with what a
// provider has no use for taken away. A call that is forbidden on purpose
// gives EPERM; one that nobody here knows gives ENOSYS, by which C libraries
// fall back to an older one.
//
// It knows nothing of containers and needs no C library.
package seccomp

//go:generate go run generate.go
