package publish_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/apply/publish"
)

// A test runs itself as the process that is killed.
const (
	childEnv = "ASPIS_PUBLISH_CHILD" // what to do
	rootEnv  = "ASPIS_PUBLISH_ROOT"
	stateEnv = "ASPIS_PUBLISH_STATE"
	seedEnv  = "ASPIS_PUBLISH_SEED"
	pointEnv = "ASPIS_PUBLISH_POINT" // the step to die at
	styleEnv = "ASPIS_PUBLISH_STYLE" // how to write
)

func TestMain(m *testing.M) {
	if job := os.Getenv(childEnv); job != "" {
		os.Exit(child(job))
	}
	os.Exit(m.Run())
}

func child(job string) int {
	seed, _ := strconv.ParseUint(os.Getenv(seedEnv), 10, 64)
	switch job {
	case "write":
		return writer(os.Getenv(rootEnv))
	case "disk":
		return serveDisk(os.Getenv(rootEnv), int64(seed))
	}
	point, _ := strconv.Atoi(os.Getenv(pointEnv))
	n := 0
	die := func(string) {
		if n++; n == point {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	opt := publish.Options{Fault: die}
	ctx := context.Background()
	inRecovery := func(string) {}
	if job == "recover" {
		inRecovery = die
	}
	w, err := publish.OpenFaulty(ctx, os.Getenv(rootEnv), os.Getenv(stateEnv), inRecovery)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer w.Close()
	switch job {
	case "publish":
		p := plan(seed)
		if p.spoil {
			opt.Fault = spoil(os.Getenv(rootEnv), p.paths(), opt.Fault)
		}
		_, err = w.Publish(ctx, p.changes, p.content, opt)
	case "undo":
		_, err = w.Undo(ctx, "", opt)
	}
	var conflict *publish.ConflictError
	switch {
	case errors.As(err, &conflict):
		return 3
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// How many steps there are to die at.
	fmt.Println(n)
	return 0
}

// start starts this test's binary with a job.
func start(t testing.TB, job, root, state string, seed uint64, point int) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+job, rootEnv+"="+root, stateEnv+"="+state,
		seedEnv+"="+strconv.FormatUint(seed, 10), pointEnv+"="+strconv.Itoa(point))
	cmd.Stderr = os.Stderr
	return cmd
}

// recoverAt opens a workspace, once in a process that is killed at a step of
// recovery, where point says so, and then here.
func recoverAt(t testing.TB, root, state string, point int) {
	t.Helper()
	if point > 0 {
		err := start(t, "recover", root, state, 0, point).Run()
		if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != -1) {
			t.Fatal(err)
		}
	}
	w := open(t, root, state)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := publish.NeedsRecovery(root); err != nil || left {
		t.Fatalf("something is left: %v (%v)", left, err)
	}
}

// TestTXNCrashAtEveryStep is TXN-CRASH: a process is killed at each step of
// publishes of random plans, and the one that recovers is killed too.
func TestTXNCrashAtEveryStep(t *testing.T) { crashAtEveryStep(t, shm(t), t.TempDir(), 220) }

func crashAtEveryStep(t *testing.T, dir, state string, points int) {
	t.Helper()
	killed, kept, seed := 0, 0, uint64(0)
	for ; killed < points; seed++ {
		p := plan(seed)
		if len(p.changes) == 0 {
			continue
		}
		for point := 1; ; point++ {
			root := filepath.Join(dir, fmt.Sprintf("%d-%d", seed, point))
			if err := os.Mkdir(root, 0o755); err != nil {
				t.Fatal(err)
			}
			p.make(t, root)
			err := start(t, "publish", root, state, seed, point).Run()
			var exit *exec.ExitError
			died := errors.As(err, &exit) && exit.ExitCode() == -1
			if !died && err != nil && exit.ExitCode() != 3 {
				t.Fatalf("plan %d, step %d: %v", seed, point, err)
			}
			again := 0
			if died {
				again = 1 + point%7
			}
			recoverAt(t, root, state, again)
			isAfter := p.whole(t, root)
			if !died {
				if isAfter != (err == nil) || isAfter == p.spoil {
					t.Fatalf("plan %d: after: %v, error %v", seed, isAfter, err)
				}
				break
			}
			killed++
			if isAfter {
				kept++
			}
		}
	}
	t.Logf("%d plans, killed %d times, of which %d had been committed", seed, killed, kept)
	if kept == 0 || kept == killed {
		t.Fatal("all ended the same way")
	}
}

// TestTXNCrashAtEverySystemCall has the kernel kill a publish at its first, second,
// third... rename, link, sync and so on, to the last of each.
func TestTXNCrashAtEverySystemCall(t *testing.T) {
	need(t, "strace", "strace")
	strace := run(t, "which", "strace")
	dir, state := shm(t), t.TempDir()
	counts := map[bool]int{}
	const seed = unspoilt + 8
	p := plan(seed)
	for _, call := range []string{"renameat", "renameat2", "unlinkat", "mkdirat", "symlinkat", "openat2", "fsync", "syncfs", "write", "pwrite64", "fchmod", "flock", "newfstatat", "fcntl", "getdents64"} {
		// Calls are counted by thread: which one it happens in is for the scheduler
		// to say.
		for n := 1; n < 30; n++ {
			root := filepath.Join(dir, fmt.Sprintf("%s-%d", call, n))
			if err := os.Mkdir(root, 0o755); err != nil {
				t.Fatal(err)
			}
			p.make(t, root)
			cmd := start(t, "publish", root, state, seed, 0)
			cmd.Args = []string{strace, "-f", "-qq", "-o", "/dev/null", "-e", "inject=" + call + ":signal=KILL:when=" + strconv.Itoa(n), cmd.Path}
			cmd.Path, cmd.Env = strace, append(cmd.Env, "GOMAXPROCS=1")
			err := cmd.Run()
			recoverAt(t, root, state, 0)
			isAfter := p.whole(t, root)
			if err == nil {
				if !isAfter {
					t.Fatal("nothing was published")
				}
				break
			}
			counts[isAfter]++
		}
	}
	t.Logf("%d changes, killed at %d calls, of which %d came after the commit", len(p.changes), counts[true]+counts[false], counts[true])
	if counts[true] == 0 || counts[false] == 0 {
		t.Error("all ended the same way")
	}
}

// TestTXNCrashAtAnyMoment kills publishes and undos at random moments.
func TestTXNCrashAtAnyMoment(t *testing.T) {
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	counts := map[bool]int{}
	for i := range 120 {
		p := plan(unspoilt + uint64(i))
		if len(p.changes) == 0 {
			continue
		}
		root := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(root, 0o755); err != nil {
			t.Fatal(err)
		}
		p.make(t, root)
		job := "publish"
		if i%3 == 0 {
			w := open(t, root, dir)
			if _, err := w.Publish(context.Background(), p.changes, p.content, publish.Options{}); err != nil {
				t.Fatal(err)
			}
			w.Close()
			job = "undo"
		}
		cmd := start(t, job, root, dir, unspoilt+uint64(i), 0)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(4000+r.IntN(16000)) * time.Microsecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		recoverAt(t, root, dir, 0)
		counts[p.whole(t, root)]++
	}
	t.Log(counts)
	if counts[true] == 0 || counts[false] == 0 {
		t.Fatal("all ended the same way")
	}
}
