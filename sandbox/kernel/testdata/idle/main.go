// Command idle is a program that a sandbox can be started for.
package main

import "os"

func main() { _, _ = os.Stdin.Read(make([]byte, 1)) }
