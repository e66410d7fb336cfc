package publish_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/apply/publish"
)

// styles are the ways in which programs write files: add to one, save a new one
// in its place, save into it.
var styles = map[string]func(path, token string) error{
	"append": func(path, token string) error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		_, err = f.WriteString(token)
		return errors.Join(err, f.Close())
	},
	"rename": func(path, token string) error {
		if err := os.WriteFile(path+".tmp", []byte(token), 0o644); err != nil {
			return err
		}
		return os.Rename(path+".tmp", path)
	},
	"truncate": func(path, token string) error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		_, err = f.WriteString(token[:5])
		time.Sleep(10 * time.Microsecond)
		if err == nil {
			_, err = f.WriteString(token[5:])
		}
		return errors.Join(err, f.Close())
	},
}

// writer writes a file until its input ends, each time another token, and prints
// every token when it has been written.
func writer(path string) int {
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	style := styles[os.Getenv(styleEnv)]
	out := bufio.NewWriter(os.Stdout)
	r := rand.New(rand.NewPCG(3, 4))
	for n := 0; !over.Load(); n++ {
		token := fmt.Sprintf("token %d of %s\n", n, filepath.Base(path))
		if err := style(path, token); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		_, _ = out.WriteString(token)
		if err := out.Flush(); err != nil {
			return 0
		}
		time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond)
	}
	return 0
}

// shm is where files cost least, so that most happens at once.
func shm(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "aspis-publish-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestTXNRace is TXN-RACE: programs write touched files in three ways during a
// thousand applies, and nothing that they wrote is lost.
func TestTXNRace(t *testing.T) {
	for style := range styles {
		t.Run(style, func(t *testing.T) {
			root, state := shm(t), t.TempDir()
			race(t, root, state, style, 340)
		})
	}
}

func race(t *testing.T, root, state, style string, applies int) {
	t.Helper()
	paths := []string{"one", "two", "quiet"}
	for _, p := range paths {
		write(t, root, p, "start\n")
	}
	logs := map[string]string{}
	var stop []func() error
	for _, p := range paths[:2] {
		cmd := start(t, "write", filepath.Join(root, p), state, 0, 0)
		cmd.Env = append(cmd.Env, styleEnv+"="+style)
		logs[p] = filepath.Join(state, p+".log")
		log, err := os.Create(logs[p])
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		cmd.Stdout = log
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		stop = append(stop, func() error { return errors.Join(in.Close(), cmd.Wait()) })
	}
	done, refused, back := 0, 0, 0
	r := rand.New(rand.NewPCG(5, 6))
	// Time for others to write between any two steps.
	slow := func(point string) {
		if point == "restored" {
			back++
		}
		time.Sleep(time.Duration(r.IntN(150)) * time.Microsecond)
	}
	quiet := "start\n"
	for n := range applies {
		had := map[string]int{}
		for p, log := range logs {
			had[p] = written(t, log)
		}
		fault := slow
		if n%8 == 0 {
			fault = nil // as fast as it goes, so that some succeed
		}
		if applyOnce(t, root, state, paths, n, fault) {
			done++
			quiet += fmt.Sprintf("applied %d\n", n)
		} else {
			refused++
		}
		// Of a refused apply nothing remains where no other program wrote.
		if got, err := os.ReadFile(filepath.Join(root, "quiet")); err != nil || string(got) != quiet {
			t.Fatalf("apply %d: quiet holds %q (%v), want %q", n, got, err, quiet)
		}
		for p, at := range had {
			if now := newest(t, filepath.Join(root, p)); now < at-1 {
				t.Fatalf("apply %d: %q is back at the token %d, though %d had been written", n, p, now, at)
			}
		}
	}
	for _, f := range stop {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d applied, %d refused, %d of them taken back", done, refused, back)
	if done == 0 || back == 0 {
		t.Error("there was no race")
	}
	if style != "append" {
		return // every token but the newest was overwritten by its own writer
	}
	all := everything(t, root)
	for p, log := range logs {
		for n := range written(t, log) {
			if token := fmt.Sprintf("token %d of %s\n", n, p); !strings.Contains(all, token) {
				t.Errorf("lost: %q", token)
			}
		}
	}
}

// written is how many tokens a writer says that it has written.
func written(t *testing.T, log string) int {
	t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "\n")
}

// newest is the number of the last token in a file, -1 where it has none. One
// that is just being written is waited for.
func newest(t *testing.T, path string) int {
	t.Helper()
	for range 10_000 {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(string(b), "\n") {
			time.Sleep(100 * time.Microsecond)
			continue
		}
		at := strings.LastIndex(string(b), "token ")
		if at < 0 {
			return -1
		}
		var n int
		if _, err := fmt.Sscanf(string(b)[at:], "token %d", &n); err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		return n
	}
	t.Fatalf("%q stays half written", path)
	return 0
}

// applyOnce adds a line to each file as it is, and to the others.
func applyOnce(t *testing.T, root, state string, paths []string, n int, fault func(string)) bool {
	t.Helper()
	b := blobs{}
	var changes []publish.Change
	for _, p := range paths {
		now, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			t.Fatal(err)
		}
		changes = append(changes, publish.Change{Path: p, Before: b.file(string(now)), After: b.file(fmt.Sprintf("%sapplied %d\n", now, n))})
	}
	w := open(t, root, state)
	defer w.Close()
	_, err := w.Publish(context.Background(), changes, b, publish.Options{Fault: fault})
	var conflict *publish.ConflictError
	if err != nil && !errors.As(err, &conflict) {
		t.Fatal(err)
	}
	return err == nil
}

// everything is what all files of a workspace hold, also those that are kept.
func everything(t *testing.T, root string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		all.Write(b)
		all.WriteString("\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
