// Command aspis-hygiene is the provider that comes with aspis: it looks for
// secrets and for other things that no change should bring in. It speaks ASP
// 1.0 on stdin and stdout.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/aspis-dev/aspis/cmd/aspis-hygiene/internal/hygiene"
	"github.com/aspis-dev/aspis/cmd/internal/provider"
)

// version is set by the build.
var version = "dev"

func main() {
	if len(os.Args) > 1 && (os.Args[1] == "version" || os.Args[1] == "--version") {
		fmt.Println(version)
		return
	}
	// Garbage is collected sooner before the granted memory runs out.
	debug.SetMemoryLimit(hygiene.MemoryMB << 20 * 3 / 4)
	code, err := provider.Serve(context.Background(), hygiene.New(version).Handler(), os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "aspis-hygiene:", err)
	}
	os.Exit(code)
}
