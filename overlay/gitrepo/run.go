package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxOutput bounds what is read from one git command, in bytes.
const maxOutput = 1 << 30

type runOptions struct {
	bare  bool   // without the shadow: for reading a file as data
	index string // GIT_INDEX_FILE
	stdin io.Reader
	limit int64    // of stdout; 0 means maxOutput
	notes *limited // for what git has to say where it succeeds
	doing string   // for errors
}

// environment is the whole environment of a git command: nothing of the
// caller's reaches it but PATH, and HOME points nowhere.
func (r *Repo) environment(o runOptions) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "XDG_CONFIG_HOME=/nonexistent", "LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1", "GIT_NO_REPLACE_OBJECTS=1",
		"GIT_PROTOCOL_FROM_USER=0", "GIT_ALLOW_PROTOCOL=", "GIT_ADVICE=0",
	}
	if o.bare {
		// Or git would look for a repository, and read its configuration.
		env = append(env, "GIT_DIR=/dev/null")
	} else {
		env = append(env, "GIT_DIR="+r.shadow)
		if r.place.root != "" {
			env = append(env, "GIT_WORK_TREE="+r.place.root)
		}
	}
	if o.index != "" {
		env = append(env, "GIT_INDEX_FILE="+o.index)
	}
	return env
}

func (r *Repo) command(ctx context.Context, o runOptions, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.git, args...)
	cmd.Env = r.environment(o)
	cmd.Dir = r.place.root
	if cmd.Dir == "" {
		cmd.Dir = r.place.common
	}
	if o.bare {
		cmd.Dir = "/"
	}
	cmd.Stdin = o.stdin
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// start starts git and bounds the memory that it may take.
func (r *Repo) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start git: %w", err)
	}
	limit := unix.Rlimit{Cur: r.memory, Max: r.memory}
	// One that has ended already needs no bound.
	if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_DATA, &limit, nil); err != nil && !errors.Is(err, unix.ESRCH) {
		return errors.Join(fmt.Errorf("bound git's memory: %w", err), cmd.Process.Kill(), cmd.Wait())
	}
	return nil
}

// run runs git and returns its output.
func (r *Repo) run(ctx context.Context, o runOptions, args ...string) ([]byte, error) {
	cmd := r.command(ctx, o, args...)
	errOut := o.notes
	if errOut == nil {
		errOut = &limited{}
	}
	cmd.Stderr = errOut
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.doing, err)
	}
	if err := r.start(cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", o.doing, err)
	}
	limit := o.limit
	if limit <= 0 {
		limit = maxOutput
	}
	out, readErr := io.ReadAll(io.LimitReader(pipe, limit+1))
	if int64(len(out)) > limit {
		_ = cmd.Process.Kill()
		readErr = fmt.Errorf("git printed more than %d bytes", limit)
	}
	waitErr := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", o.doing, context.Cause(ctx))
	case readErr != nil:
		return nil, fmt.Errorf("%s: %w", o.doing, readErr)
	case waitErr != nil:
		return out, &gitError{doing: o.doing, stderr: errOut.String(), err: waitErr}
	}
	return out, nil
}

// gitError is a git command that failed.
type gitError struct {
	doing, stderr string
	err           error
}

func (e *gitError) Error() string {
	return (&DamagedError{Doing: e.doing, Detail: e.detail()}).Error()
}

func (e *gitError) Unwrap() error { return e.err }

// As lets callers treat every failed git command as a damaged repository.
func (e *gitError) As(target any) bool {
	if d, ok := target.(**DamagedError); ok {
		*d = &DamagedError{Doing: e.doing, Detail: e.detail()}
		return true
	}
	return false
}

func (e *gitError) detail() string {
	line := strings.TrimSpace(e.stderr)
	if i := strings.IndexByte(line, '\n'); i >= 0 {
		line = line[:i]
	}
	if line == "" {
		return e.err.Error()
	}
	return fmt.Sprintf("%q", strings.TrimPrefix(line, "fatal: "))
}

// exitCode is the exit code of a failed git command, or -1.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// limited keeps the first 4 KiB that are written to it.
type limited struct {
	mu   sync.Mutex // one that stays is read while git may still write
	buf  bytes.Buffer
	lost bool // there was more
}

func (l *limited) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	room := 4096 - l.buf.Len()
	l.lost = l.lost || len(p) > room
	l.buf.Write(p[:min(room, len(p))])
	return len(p), nil
}

func (l *limited) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// full tells that something was not kept.
func (l *limited) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}
