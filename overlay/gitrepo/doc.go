// Package gitrepo reads a git repository as data: which trees there are, what
// differs between them, and what bytes their blobs hold.
//
// A repository's own configuration can name commands under keys that nobody
// can list (filter.<any>.clean, core.fsmonitor, diff.external, hooks and more),
// so it is never loaded. Git runs on a shadow git directory of ours with a
// configuration that we write; it borrows the repository's objects through
// alternates, sees its refs through links, and works on a copy of its index.
// New objects go into the shadow and nowhere else.
// Of the configuration, the few values that decide how files are read (such as
// core.autocrlf and core.excludesFile) are read as data and written anew.
//
// Git does not compare an object's bytes with its name, believes the index about
// files that it marks, and leaves some names out without failing. Here bytes are
// held against their names wherever they are read, and what would be left out is
// an error.
//
// The package knows nothing of snapshots on disk, containers or providers.
package gitrepo
