// Package toolinstall finds a tool on this machine and makes a provider of it:
// the entry of trusted configuration, and where the tool does not lie among the
// machine's own programs, a directory with it and what it needs. It grants
// nothing, and it knows nothing of how the provider runs the tool.
package toolinstall
