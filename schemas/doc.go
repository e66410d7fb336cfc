// Package schemas holds the ASP 1.0 vocabulary: the wire types of both seams
// and of the configuration files, their JSON Schemas, strict bounded decoding,
// canonical JSON and digests.
//
// It imports no other package of this module and knows nothing of git,
// containers, processes or policy. A value that came out of Decode has the
// right shape; whether it may be believed is for the host to say.
//
// Optional members are pointers, slices or strings with omitzero; required
// arrays are always written, as [] when empty.
package schemas
