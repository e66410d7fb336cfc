// Package containerd runs sandboxes from OCI images through a containerd
// daemon: with runc, or with a stronger runtime by containerd's name for it.
//
// An image is named with its digest, and what runs is the image of that digest
// or nothing. The evidence is taken as for any other sandbox: the kernel's own
// account of the very process, held at its first stage. Where a runtime keeps
// the process from this kernel (gVisor, a virtual machine), only what can be
// measured from outside is claimed, and the mode is accordingly less.
//
// The daemon, its shims and its snapshots are part of the host: they run as the
// machine's root and are trusted. The package pulls no image and starts no
// daemon. It links a large client, so a program that must start fast does not
// import it. It knows nothing of providers or policy.
package containerd
