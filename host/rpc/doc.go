// Package rpc is the JSON-RPC 2.0 connection that both seams of ASP use: one
// JSON object a line, UTF-8, requests and notifications in both directions, no
// batches (asp-wire, Transport).
//
// It exists because the peer of a gate is hostile: every line, queue and wait
// is bounded, an answer to a request that was never made or was answered
// before is seen and named, and a peer that does not read cannot hold up the
// host. It knows nothing of ASP methods, providers or processes.
package rpc
