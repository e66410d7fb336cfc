package container

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

// run starts, releases, reads everything and closes.
func run(tb testing.TB, rt *Runtime, spec sandbox.Spec) (out string, exit sandbox.ExitState) {
	tb.Helper()
	ctx := testContext(tb)
	p, err := rt.Start(ctx, spec)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() {
		if err := p.Close(ctx); err != nil {
			tb.Error(err)
		}
	}()
	if err := p.Release(ctx); err != nil {
		tb.Fatal(err)
	}
	b, err := io.ReadAll(p.Stdout())
	if err != nil {
		tb.Fatal(err)
	}
	exit, err = p.Wait(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b), exit
}

func TestInside(t *testing.T) {
	rt := newRuntime(t)
	spec := probeSpec("see")
	spec.Env = []string{"ONLY=this"}
	out, exit := run(t, rt, spec)
	if exit.Code != 0 || exit.Signal != 0 && exit.Signal != -1 {
		t.Errorf("exit %+v", exit)
	}
	for _, want := range []string{
		"NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000",
		"== env ONLY=this HOME=/tmp/home\n", "== pid 1 ",
		"== ls / <nil> .aspis dev etc proc provider tmp\n",
		"== ls /dev <nil> fd full null random stderr stdin stdout urandom zero\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

func TestSystemDirectories(t *testing.T) {
	rt := newRuntime(t)
	spec := probeSpec()
	spec.System, spec.Artifact = true, ""
	spec.Path, spec.Args, spec.Dir = "/bin/sh", []string{"sh", "-c", "id -u; ls /etc"}, "/"
	out, exit := run(t, rt, spec)
	if exit.Code != 0 || strings.Contains(out, "shadow") || !strings.Contains(out, "passwd") {
		t.Errorf("exit %+v, output %q", exit, out)
	}
}

func TestWritesFail(t *testing.T) {
	rt := newRuntime(t)
	snapshot := t.TempDir()
	spec := probeSpec("write", "/x", "/provider/x", "/workspace/candidate/x", "/etc/x", "/dev/x", "/proc/sys/kernel/hostname", "/.aspis/stage", "/tmp/x")
	spec.Mounts = []sandbox.Mount{{Source: snapshot, Target: "/workspace/candidate"}}
	if err := os.Chmod(snapshot, 0o777); err != nil {
		t.Fatal(err)
	}
	out, _ := run(t, rt, spec)
	for line := range strings.Lines(out) {
		allowed := strings.HasPrefix(line, "/tmp/x ")
		if worked := strings.HasSuffix(line, " <nil>\n"); worked != allowed {
			t.Errorf("write: %s", line)
		}
	}
	if strings.Count(out, "\n") != len(spec.Args)-2 {
		t.Errorf("output %q", out)
	}
}

func TestExitCodeAndStderr(t *testing.T) {
	rt := newRuntime(t)
	ctx := testContext(t)
	p, err := rt.Start(ctx, probeSpec("exit"))
	if err != nil {
		t.Fatal(err)
	}
	defer closeProcess(t, p)
	if err := p.Release(ctx); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(p.Stderr())
	if err != nil || string(b) != "leaving\n" {
		t.Errorf("standard error %q, %v", b, err)
	}
	if exit, err := p.Wait(ctx); err != nil || exit.Code != 7 {
		t.Errorf("exit %+v, %v", exit, err)
	}
}

// TestStreamsBelongToTheProgram writes before the release: the first stage
// must take its one byte and leave the rest.
func TestStreamsBelongToTheProgram(t *testing.T) {
	rt := newRuntime(t)
	ctx := testContext(t)
	p, err := rt.Start(ctx, probeSpec("echo"))
	if err != nil {
		t.Fatal(err)
	}
	defer closeProcess(t, p)
	if err := p.Release(ctx); err != nil {
		t.Fatal(err)
	}
	want := "first\n" + strings.Repeat("0123456789abcdef\n", 20000)
	go func() {
		_, _ = io.WriteString(p.Stdin(), want) // a failure shows in what is read
		_ = p.Stdin().Close()
	}()
	got, err := io.ReadAll(p.Stdout())
	if err != nil || string(got) != want {
		t.Errorf("got %d bytes of %d, %v", len(got), len(want), err)
	}
}

func TestStartFails(t *testing.T) {
	rt := newRuntime(t)
	run(t, rt, probeSpec()) // opens what the process keeps once and for all
	before := footprint(t, rt)
	private := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*sandbox.Spec){
		"no such program": func(s *sandbox.Spec) { s.Path = "/provider/absent" },
		"no such source": func(s *sandbox.Spec) {
			s.Mounts = []sandbox.Mount{{Source: "/no/such", Target: "/workspace/candidate"}}
		},
		"bad target":       func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/usr", Target: "/a/../b"}} },
		"no arguments":     func(s *sandbox.Spec) { s.Args = nil },
		"private artifact": func(s *sandbox.Spec) { s.Artifact = private },
		"no directory":     func(s *sandbox.Spec) { s.Artifact = "/no/such" },
	} {
		t.Run(name, func(t *testing.T) {
			spec := probeSpec()
			change(&spec)
			p, err := rt.Start(testContext(t), spec)
			if err == nil {
				closeProcess(t, p)
				t.Fatal("started")
			}
			t.Log(err)
		})
	}
	compare(t, before, footprint(t, rt))
}

func TestStartCancelled(t *testing.T) {
	rt := newRuntime(t)
	run(t, rt, probeSpec()) // opens what the process keeps once and for all
	before := footprint(t, rt)
	for i := range 20 {
		ctx, cancel := context.WithTimeout(testContext(t), time.Duration(i)*time.Millisecond)
		p, err := rt.Start(ctx, probeSpec())
		cancel()
		if err == nil {
			closeProcess(t, p)
		}
	}
	compare(t, before, footprint(t, rt))
}

func TestManyAtOnce(t *testing.T) {
	rt := newRuntime(t)
	run(t, rt, probeSpec()) // opens what the process keeps once and for all
	before := footprint(t, rt)
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			ctx := testContext(t)
			p, err := rt.Start(ctx, probeSpec())
			if err != nil {
				t.Error(err)
				return
			}
			defer closeProcess(t, p)
			if err := p.Release(ctx); err != nil {
				t.Error(err)
			}
			if b, err := io.ReadAll(p.Stdout()); err != nil || string(b) != "hello\n" {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
	all.Wait()
	compare(t, before, footprint(t, rt))
}

func closeProcess(tb testing.TB, p sandbox.Process) {
	tb.Helper()
	if err := p.Close(testContext(tb)); err != nil {
		tb.Error(err)
	}
}

// TestWorkArea writes to an overlay that the Spec names as a work area, as the
// user whom the files belong to: isolated all the same, and a plain directory in
// its place is not.
func TestWorkArea(t *testing.T) {
	rt := newRuntime(t)
	dir := t.TempDir()
	for _, d := range []string{"lower", "upper", "work", "at"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "lower/file"), []byte("below\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const user = 54321
	for _, d := range []string{"lower", "lower/file", "upper"} {
		if err := os.Lchown(filepath.Join(dir, d), user, user); err != nil {
			t.Skip("needs: other ids, to give files to a user: " + err.Error())
		}
	}
	at := filepath.Join(dir, "at")
	if err := rt.opt.Space.Do(func() error {
		return unix.Mount("overlay", at, "overlay", 0, "lowerdir="+filepath.Join(dir, "lower")+",upperdir="+filepath.Join(dir, "upper")+",workdir="+filepath.Join(dir, "work"))
	}); err != nil {
		t.Skip("needs: an overlay over a temporary directory: " + err.Error())
	}
	t.Cleanup(func() {
		if err := rt.opt.Space.Do(func() error { return unix.Unmount(at, unix.MNT_DETACH) }); err != nil {
			t.Error(err)
		}
	})
	spec := probeSpec()
	spec.System, spec.Artifact, spec.Mounts, spec.TmpExec = true, "", nil, true
	spec.RunAs = &sandbox.IDs{User: user, Group: user}
	spec.Work = []sandbox.Mount{{Source: at, Target: "/home/somebody/project"}}
	spec.Protect = []string{filepath.Join(dir, "lower")}
	spec.Path, spec.Dir = "/bin/sh", "/home/somebody/project"
	spec.Args = []string{"sh", "-c", "cat file; echo changed >file; echo new >new; cp /bin/true /tmp/t && /tmp/t && echo ran; echo x 2>/dev/null >/home/somebody/out || echo shut"}
	if missing := fallen(evidence(t, rt, spec)); len(missing) > 0 {
		t.Errorf("it is not isolated: %v", missing)
	}
	out, exit := run(t, rt, spec)
	if exit.Code != 0 || out != "below\nran\nshut\n" {
		t.Errorf("exit %+v, output %q", exit, out)
	}
	for name, want := range map[string]string{"lower/file": "below\n", "upper/file": "changed\n", "upper/new": "new\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s holds %q (%v)", name, got, err)
		}
	}
	// What writes through is no work area.
	spec.Work[0].Source = filepath.Join(dir, "lower")
	e := evidence(t, rt, spec)
	mode, missing := e.Mode()
	if mode == sandbox.ModeIsolated {
		t.Errorf("a directory of the host's that can be written passes as a work area: %v", missing)
	}
}

// fallen lists the walls that do not stand.
func fallen(e sandbox.Evidence) (out []string) {
	for _, w := range e.Walls {
		if !w.Standing {
			out = append(out, string(w.Name)+": "+w.Seen)
		}
	}
	return out
}

// TestInit has a shell end by a signal that it has no handler for, and leave an
// orphan: an init of ours passes the one on and reaps the other.
func TestInit(t *testing.T) {
	rt := newRuntime(t)
	spec := probeSpec()
	spec.System, spec.Artifact, spec.Init = true, "", true
	spec.Path, spec.Dir = "/bin/sh", "/"
	spec.Args = []string{"sh", "-c", "(sleep 0.05 &) ; echo $$; exit 7"}
	if out, exit := run(t, rt, spec); exit.Code != 7 || strings.TrimSpace(out) == "1" {
		t.Errorf("exit %+v, output %q", exit, out)
	}
	spec.Args = []string{"sh", "-c", "echo ready; exec sleep 60"}
	ctx := testContext(t)
	p, err := rt.Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer closeProcess(t, p)
	if err := p.Release(ctx); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 6)
	if _, err := io.ReadFull(p.Stdout(), buf); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(ctx); err != nil || exit.Code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit %+v (%v)", exit, err)
	}
}
