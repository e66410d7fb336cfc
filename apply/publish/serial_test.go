package publish_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/aspis-dev/aspis/apply/publish"
)

// committed is one publish of the model test: the versions of files that it
// read, and those that it made.
type committed struct{ read, made map[string]string }

// TestPublishesHaveASerialOrder lets many agents publish to one workspace at
// once. Each reads some files and writes some of them. Whatever happens, the
// outcome is that of carrying out those that succeeded one after another.
func TestPublishesHaveASerialOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		agents := rapid.IntRange(2, 6).Draw(rt, "agents")
		each := rapid.IntRange(1, 6).Draw(rt, "publishes of each")
		files := rapid.IntRange(1, 5).Draw(rt, "files")
		seed := rapid.Uint64().Draw(rt, "seed")
		root, err := os.MkdirTemp("/dev/shm", "aspis-publish-test-")
		if err != nil {
			root, err = os.MkdirTemp("", "aspis-publish-test-")
		}
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(root)
		defer os.RemoveAll(root + ".state")
		first := map[string]string{}
		for i := range files {
			p := fmt.Sprintf("f%d", i)
			write(t, root, p, "start\n")
			first[p] = "start\n"
		}
		var mu sync.Mutex
		var done []committed
		var wg sync.WaitGroup
		for a := range agents {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(a)))
				for n := range each {
					c, err := agent(root, fmt.Sprintf("%d.%d", a, n), slices.Sorted(maps.Keys(first)), r)
					var conflict *publish.ConflictError
					if errors.As(err, &conflict) {
						continue
					}
					mu.Lock()
					if err != nil {
						rt.Errorf("agent %d: %v", a, err)
					}
					done = append(done, c)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if rt.Failed() {
			return
		}
		last := map[string]string{}
		for p := range first {
			b, err := os.ReadFile(filepath.Join(root, p))
			if err != nil {
				rt.Fatal(err)
			}
			last[p] = string(b)
		}
		if len(done) == 0 {
			rt.Fatal("nobody ever succeeded")
		}
		// Versions are unique, so that carrying out what can be carried out, in any
		// order in which that is possible, ends the same way.
		now := first
		for len(done) > 0 {
			i := slices.IndexFunc(done, func(c committed) bool {
				for p, v := range c.read {
					if now[p] != v {
						return false
					}
				}
				// Who only reads a version goes before who replaces it.
				return !slices.ContainsFunc(done, func(o committed) bool {
					for p := range c.made {
						if _, writes := o.made[p]; !writes && o.read[p] == now[p] && o.read[p] != "" {
							return true
						}
					}
					return false
				})
			})
			if i < 0 {
				rt.Fatalf("no serial order: at %q remain %q", now, done)
			}
			maps.Copy(now, done[i].made)
			done = slices.Delete(done, i, i+1)
		}
		if !maps.Equal(now, last) {
			rt.Fatalf("the files are %q, the serial order gives %q", last, now)
		}
	})
}

// agent publishes once: it reads some files and writes at least one of them.
func agent(root, name string, files []string, r *rand.Rand) (committed, error) {
	c := committed{map[string]string{}, map[string]string{}}
	b := blobs{}
	var changes []publish.Change
	r.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	for i, p := range files[:1+r.IntN(len(files))] {
		text, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			return c, err
		}
		c.read[p] = string(text)
		ch := publish.Change{Path: p, Before: b.file(string(text)), After: b.file(string(text))}
		if i == 0 || r.IntN(2) == 0 {
			c.made[p] = fmt.Sprintf("%s by %s\n", p, name)
			ch.After = b.file(c.made[p])
		}
		changes = append(changes, ch)
	}
	time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
	w, err := publish.Open(context.Background(), root, root+".state")
	if err != nil {
		return c, err
	}
	defer w.Close()
	_, err = w.Publish(context.Background(), changes, b, publish.Options{})
	return c, err
}
