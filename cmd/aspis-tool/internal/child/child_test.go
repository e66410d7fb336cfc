package child

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func sh(script string) Command {
	return Command{Path: "/bin/sh", Args: []string{"-c", script}, Dir: "/", Env: []string{"PATH=/usr/bin:/bin"}, Timeout: 20 * time.Second, Stdout: 1000, Stderr: 1000}
}

func TestHowARunEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		code   int
		want   string // part of the failure; "" is none
	}{
		"clean":         {"echo out; echo err >&2", 0, ""},
		"code":          {"exit 42", 42, ""},
		"killed":        {"kill -9 $$", 0, "memory"},
		"crashed":       {"kill -SEGV $$", 0, "signal 11"},
		"prints a lot":  {"yes", 0, "more than 1000 bytes"},
		"says a lot":    {"head -c 100000 /dev/zero >&2; exit 3", 3, ""},
		"leaves others": {"(sleep 1000) & exit 0", 0, "left processes"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Run(t.Context(), sh(tc.script))
			if (r.Failure == "") != (tc.want == "") || !strings.Contains(r.Failure, tc.want) || (tc.want == "" && r.Code != tc.code) {
				t.Errorf("%+v", r)
			}
			if len(r.Stdout) > 1000 || len(r.Stderr) > 1000 {
				t.Errorf("%d and %d bytes are kept", len(r.Stdout), len(r.Stderr))
			}
		})
	}
}

func TestMissing(t *testing.T) {
	c := sh("")
	c.Path = filepath.Join(t.TempDir(), "none")
	if r := Run(t.Context(), c); !r.Missing || r.Failure == "" {
		t.Errorf("%+v", r)
	}
}

func TestTimeoutAndCancel(t *testing.T) {
	c := sh("sleep 1000 & sleep 1000")
	c.Timeout = 50 * time.Millisecond
	if r := Run(t.Context(), c); !r.TimedOut || r.Failure == "" {
		t.Errorf("%+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := Run(ctx, sh("sleep 1000")); r.Failure != "it was cancelled" {
		t.Errorf("%+v", r)
	}
}

// TestNothingOutlivesARun starts a process that leaves its group and session.
func TestNothingOutlivesARun(t *testing.T) {
	if _, err := os.Stat("/usr/bin/setsid"); err != nil {
		t.Fatal("setsid (util-linux) is on every machine that runs these tests: ", err)
	}
	mark := filepath.Join(t.TempDir(), "pid")
	r := Run(t.Context(), sh(`setsid sh -c 'echo $$ >`+mark+`; exec sleep 1000' >/dev/null 2>&1 & while ! test -s `+mark+`; do :; done`))
	if r.Failure != "" {
		t.Fatalf("%+v", r)
	}
	raw, err := os.ReadFile(mark)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("process %d is still there: %v", pid, err)
	}
}
