// Command aspis-tool is a provider that runs an ordinary tool: a linter, a type
// checker, a scanner, a formatter that only looks. Which tool, and how, comes as
// its configuration. It speaks ASP 1.0 on stdin and stdout.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/aspis-dev/aspis/cmd/aspis-tool/internal/check"
	"github.com/aspis-dev/aspis/cmd/internal/provider"
)

// version is set by the build.
var version = "dev"

func main() {
	f := flag.NewFlagSet("aspis-tool", flag.ExitOnError)
	id := f.String("id", "aspis-tool", "what the provider calls itself")
	says := f.String("version", version, "the version that the provider reports")
	source := f.String("source", "", "the diagnostic source of its findings; the id unless given")
	_ = f.Parse(os.Args[1:]) // ends the program by itself
	if f.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "aspis-tool: unexpected argument %q\n", f.Arg(0))
		os.Exit(2)
	}
	if *source == "" {
		*source = *id
	}
	if strings.Contains(*source, "/") {
		fmt.Fprintf(os.Stderr, "aspis-tool: the source %q holds a slash\n", *source)
		os.Exit(2)
	}
	p := check.New(check.Identity{ID: *id, Version: *says, Sources: []string{*source}}, check.InContainer())
	code, err := provider.Serve(context.Background(), p.Handler(), os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "aspis-tool:", err)
	}
	os.Exit(code)
}
