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
// The package knows nothing of providers, policy or containers; where a view is
// mounted is the caller's Mounter to say.
package overlay
