// Package seccomp makes the system call filter of a sandbox: a profile, its
// compilation to the kernel's BPF, and a cache, so that a start only loads
// bytes.
//
// It knows nothing of containers. It needs no C library.
package seccomp
