// Command aspis stands between a repository and the programs that are let loose
// on it. See `aspis help`.
package main

import (
	"os"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/cli"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(cli.Main(version, os.Args[1:])) }
