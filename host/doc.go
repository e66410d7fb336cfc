// Package host is the coordinator of a conforming ASP host: it knows which
// providers trusted policy requires, runs them behind their walls, judges what
// they answer, decides, and leaves a receipt. Both the command line and the
// JSON-RPC seam call it.
//
// It does not know how a container is built (sandbox), how a snapshot is stored
// (overlay), how policy files look (policy) or how text is shown (cmd).
package host
