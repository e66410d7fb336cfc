// Command hello uses of a kernel what a Go program does: threads, timers,
// files, pipes and the poller.
package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

func main() {
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			time.Sleep(time.Millisecond)
			if _, err := io.WriteString(w, "x"); err != nil {
				panic(err)
			}
		})
	}
	all.Wait()
	if err := w.Close(); err != nil {
		panic(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		panic(err)
	}
	f, err := os.CreateTemp("", "hello")
	if err != nil {
		panic(err)
	}
	if err := os.Remove(f.Name()); err != nil {
		panic(err)
	}
	fmt.Printf("hello from %d goroutines\n", len(b))
}
