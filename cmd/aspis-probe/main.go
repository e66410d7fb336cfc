// Command aspis-probe tries to get out of the sandbox that it runs in; see
// package sandbox/probe. It is started by aspis doctor --probe.
package main

import (
	"os"

	"github.com/aspis-dev/aspis/sandbox/probe"
)

func main() { os.Exit(probe.Inside(os.Args[1:], os.Stdout)) }
