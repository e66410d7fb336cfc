// Package gitrepo reads a git repository as data: which trees there are, what
// differs between them, and what bytes their blobs hold.
//
// A repository's own configuration can name commands under keys that nobody
// can list (filter.<any>.clean, core.fsmonitor, diff.external, hooks and more),
// so it is never loaded. Git runs on a shadow git directory of ours with a
// configuration that we write; it borrows the repository's objects through
// alternates, sees its refs through links, and works on a copy of its index.
// New objects go into the shadow and nowhere else.
//
// The package knows nothing of snapshots on disk, containers or providers.
package gitrepo
