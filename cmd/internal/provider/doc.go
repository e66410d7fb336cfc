// Package provider is the provider's side of ASP's inner seam, for the
// providers that come with aspis: the handshake, the grant, requests one at a
// time, callbacks for names and bytes with an exact account of what was read.
//
// It shares the wire types with the host and nothing else: a mistake that both
// sides made in one piece of code would not be seen by either. It knows nothing
// of what a provider looks for, and it opens no file.
package provider
