// Package overlay keeps immutable snapshots of git trees on disk and gives
// read-only views of them.
//
// A baseline is written once for its tree id and shared by everything that
// needs it. A candidate is one layer over its baseline that holds what changed,
// with whiteouts for what went. Layers and their parents are kept by
// containerd's overlay snapshotter, used as a library: there is no daemon. Its
// database is open only for the moment of a change, so that several processes
// can share one store and none waits for another's provider.
//
// Layers are written as they are to lie, not through a mount: a new layer needs
// no privilege, and no extended attributes, which a user namespace and the
// machine's root name differently.
//
// What lies in a store's directory:
//
//	layers/metadata.db            containerd's: keys, parents, layer numbers
//	layers/snapshots/N/fs         the files of a layer
//	layers/snapshots/N/manifest   what they are, with their digests
//	blobs/sha256/ab/cdef...       bytes that are in no tree
//	leases/KEY                    locked by those who use a snapshot
//	work/areas/ID/area.json       a work area: what it lies over, and since when
//	work/areas/ID/N/upper         what was changed in its directory N
//	work/layers/KEY-TIME/fs       a project as it was, or what differs from it
//	work/layers/KEY-TIME/record   what was seen of each of its files
//	trash/                        what is being removed
//	lock                          held while the database is open
//
// A snapshot is there when the database says so, which it does last.
//
// A work area is a writable tree over a project that never notices: over a frozen
// copy of it (package frozen), in which what changes meanwhile cannot show, or
// over the project itself where that is asked for or there is no room. What was
// done in it is read from the kernel's upper directory (package upper).
//
// The package knows nothing of providers, policy or containers; where a view is
// mounted is the caller's Mounter to say.
package overlay
