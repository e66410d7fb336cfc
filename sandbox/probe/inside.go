package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"
)

// programName is the first argument of every process of the program.
const programName = "aspis-probe"

const (
	attemptTime  = 15 * time.Second
	maxLine      = 8 << 10
	maxFactsSize = 64 << 10
)

// Inside is the whole program. args are its arguments without its name; it
// gives the exit code.
func Inside(args []string, stdout io.Writer) int {
	// Ending a test of ours must not end what tests whether it can be ended.
	if len(args) == 0 {
		_, _ = fmt.Fprintln(os.Stderr, "aspis-probe is started by aspis doctor --probe, inside a sandbox")
		return 2
	}
	switch args[0] {
	case "nothing":
		return 0
	case "wait", "left":
		signal.Ignore(unix.SIGHUP, unix.SIGTERM, unix.SIGPIPE)
		time.Sleep(time.Minute)
		return 0
	case "leave":
		c := exec.Command("/proc/self/exe", "left", args[1])
		c.Args[0] = programName
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			return 1
		}
		return 0
	}
	if len(args) < 2 || len(args[1]) > maxFactsSize {
		return 2
	}
	var facts Facts
	if err := json.Unmarshal([]byte(args[1]), &facts); err != nil {
		return 2
	}
	switch args[0] {
	case "all":
		for _, a := range Attempts() {
			if say(stdout, apart(a, args[1])) != nil {
				return 1
			}
		}
		return 0
	case "one":
		for _, a := range append(Attempts(), Exhaustions()...) {
			if len(args) == 3 && a.Name == args[2] {
				if say(stdout, a.run(&facts)) != nil {
					return 1
				}
				return 0
			}
		}
	}
	return 2
}

func say(w io.Writer, r Result) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

func (a Attempt) run(f *Facts) Result {
	r := a.try(f)
	r.Name, r.Wall = a.Name, a.Wall
	return r
}

// apart runs one attempt in a process of its own, so that none can change what
// the next one sees.
func apart(a Attempt, facts string) Result {
	ctx, cancel := context.WithTimeout(context.Background(), attemptTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "one", facts, a.Name)
	cmd.Args[0] = programName
	out := &limited{}
	cmd.Stdout = out
	err := cmd.Run()
	var r Result
	if jerr := json.Unmarshal(bytes.TrimSpace(out.Bytes()), &r); jerr == nil && r.Name == a.Name {
		return r
	}
	r = Result{Name: a.Name, Wall: a.Wall}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == unix.SIGSYS {
			r.State, r.Seen = Blocked, "the filter ended the process"
			return r
		}
	}
	r.State, r.Seen = Open, fmt.Sprintf("nothing is known of it: %v", err)
	return r
}

// limited keeps the beginning of what is written.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	if room := maxLine - l.Len(); room > 0 {
		l.Buffer.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}
