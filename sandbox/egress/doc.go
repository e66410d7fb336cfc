// Package egress lets a confined process reach named hosts and ports, and
// nothing else.
//
// A sandbox has a network stack of its own with nothing in it but the loopback.
// The host makes one listening socket there and serves it from outside with a
// Proxy: HTTP CONNECT, plain HTTP and SOCKS5 on the same port. The process names
// where it wants to go; the host decides by a List, resolves the name itself,
// refuses every address that is not a public one unless the list names that
// very address, connects to the address that it has judged, and keeps an
// Attempt of it for the evidence.
//
// A host may have a Credential: the proxy then ends the TLS of the process
// itself, under an authority that is made for the run and good for these hosts
// only, and adds the header on the way out. The key never enters the sandbox.
// All other TLS goes through unseen, so that what a permitted host does with a
// connection, such as to serve another name from the same address, is between
// the process and that host.
//
// The package must not know what a sandbox is made of, who asks, or why.
package egress
