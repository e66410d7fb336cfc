package supervise

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/internal/stage"
)

// script runs a shell script at the other end of pipes.
func script(t *testing.T, text string) (*Pipes, *exec.Cmd) {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("SKIPPED: no sh")
	}
	p, err := NewPipes()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(sh, "-c", text)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.Child[0], p.Child[1], p.Child[2]
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.CloseChild()
	t.Cleanup(func() {
		KillDescendants(cmd.Process.Pid)
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed, as asked
		p.Close()
	})
	return p, cmd
}

func TestHandshake(t *testing.T) {
	ready := strings.TrimSpace(stage.Ready)
	refused := strings.TrimSpace(stage.Refused)
	for _, c := range []struct{ name, script, want string }{
		{"ready", "read x; echo " + ready, ""},
		{"refused", "read x; echo " + refused + "; echo because", "because"},
		{"nonsense", "read x; echo 'something else that is long'", "something else"},
		{"nothing", "read x; echo broken >&2", "broken"},
		{"half", "read x; printf aspis-", "said nothing"},
		{"no reader", "exit 1", "first stage"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _ := script(t, c.script)
			err := p.Handshake(t.Context(), []byte("header\n"))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestHandshakeEndsWithContext(t *testing.T) {
	p, _ := script(t, "sleep 100")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Handshake(ctx, []byte("header\n")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func TestReleaseOnce(t *testing.T) {
	p, _ := script(t, "cat")
	if err := p.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(t.Context()); err == nil {
		t.Error("released twice")
	}
	_ = p.Host[0].Close()
	if b, err := io.ReadAll(p.Host[1]); err != nil || string(b) != string(rune(stage.Go)) {
		t.Errorf("%q, %v", b, err)
	}
}

func TestTreeAndKillDescendants(t *testing.T) {
	p, cmd := script(t, "(sleep 100 & sleep 100) & sleep 100 & echo ready; wait; wait; sleep 100")
	if _, err := io.ReadFull(p.Host[1], make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for len(Tree(cmd.Process.Pid)) < 4 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	tree := Tree(cmd.Process.Pid)
	if len(tree) < 4 || tree[0] != cmd.Process.Pid || slices.Contains(tree[1:], tree[0]) {
		t.Fatalf("tree %v", tree)
	}
	if tasks, rss := use(tree); tasks < 4 || rss <= 0 {
		t.Errorf("%d tasks, %d bytes", tasks, rss)
	}
	KillDescendants(cmd.Process.Pid)
	for alive(tree[1:]) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d are alive", alive(tree[1:]))
		}
		time.Sleep(time.Millisecond)
	}
}

func TestWatchdog(t *testing.T) {
	for _, c := range []struct {
		name     string
		lim      sandbox.Limits
		timedOut bool
		oom      bool
	}{
		{"wall clock", sandbox.Limits{WallClock: 30 * time.Millisecond}, true, false},
		{"memory", sandbox.Limits{MemoryBytes: 1}, false, true},
		{"processes", sandbox.Limits{Pids: 1}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, cmd := script(t, "sleep 100; sleep 100")
			killed := make(chan struct{})
			w := NewWatchdog(cmd.Process.Pid, c.lim, func() error { close(killed); return nil })
			w.Released()
			w.Released()
			select {
			case <-killed:
			case <-time.After(5 * time.Second):
				t.Error("not killed")
			}
			if timedOut, oom := w.Stop(); timedOut != c.timedOut || oom != c.oom {
				t.Errorf("timed out %v, over memory %v", timedOut, oom)
			}
		})
	}
}

func TestWatchdogLetsBe(t *testing.T) {
	_, cmd := script(t, "sleep 100")
	w := NewWatchdog(cmd.Process.Pid, sandbox.Limits{WallClock: time.Hour, Pids: 100, MemoryBytes: 1 << 30}, func() error {
		t.Error("killed")
		return nil
	})
	time.Sleep(3 * pollInterval)
	if timedOut, oom := w.Stop(); timedOut || oom {
		t.Errorf("timed out %v, over memory %v", timedOut, oom)
	}
}
