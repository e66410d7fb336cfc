// Command stage is the first stage alone, linked statically.
package main

import (
	"fmt"

	_ "github.com/aspis-dev/aspis/sandbox/internal/stage"
)

func main() { fmt.Println("not a first stage") }
