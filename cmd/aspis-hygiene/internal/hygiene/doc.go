// Package hygiene finds what no change should bring in: secrets, conflict
// markers, characters that hide what code does, names and links that do harm on
// other machines, files that are broken or too large.
//
// A check has three steps. Both sides of a change are listed as sources
// (plan.go), each source's content is asked of the host and scanned into
// findings (scan.go and a file for each group of rules), and the two sides are
// compared as multisets (compare.go), so that what only moves is not new.
//
// Bytes come from the host's callbacks alone. Where the host has mounted the
// snapshot, modes and names are looked up in it, because a list of changed
// blobs has neither (snapshot.go). The package decides nothing and knows no
// policy; nothing in the change under test can turn one of its rules off.
package hygiene
