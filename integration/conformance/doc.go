// Package conformance is the black-box suite of ASP 1.0's behaviour ids: what a
// host must be seen to do, and what a provider must be seen to do. It drives
// real programs over their own seams, judges what comes back by the JSON Schemas
// and the rules of the wire, and reports one result an id.
//
// It must not know how a host or a provider is built: of this module it imports
// the vocabulary only. The command line and the tests share it.
package conformance
