// Package match tells which findings a change brings in: those after it less
// those before it, as multisets, wherever they stand.
//
// A finding is the same as an earlier one when a tool says the same by the same
// rule of the same code. Line numbers mean nothing for that. Both sides are cut
// into tokens without what formatters change, and the tokens are aligned, within
// a file, across a rename and between files. Findings on tokens that are aligned
// throughout are the same (a reformatted or moved line). Of what is left, those
// with the same tokens are paired off, in the same file first (a block that was
// moved but is not unique). A finding on a line of which a token was changed is
// new: whoever touches a line is asked about it.
//
// It knows nothing of tools or of ASP.
package match
