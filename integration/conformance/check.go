package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/aspis-dev/aspis/schemas"
)

// Outcome is how a run of a command ended.
type Outcome struct {
	Code           int
	Stdout, Stderr string
}

// Run runs the host's program with --config and --repo, as aspis takes them.
func (w *World) Run(ctx context.Context, args ...string) (Outcome, error) {
	cmd := w.command(append(append([]string{"--config", w.Config, "--repo", w.Repo}, w.Flags...), args...)...)
	return run(ctx, cmd.Args[1:], w)
}

func run(ctx context.Context, args []string, w *World) (Outcome, error) {
	cmd := w.command(args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return Outcome{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer stop()
	err := cmd.Wait()
	if ctx.Err() != nil {
		return Outcome{}, fmt.Errorf("%s did not end in time: %w", strings.Join(args, " "), ctx.Err())
	}
	if err != nil && cmd.ProcessState.ExitCode() < 0 {
		return Outcome{}, err
	}
	return Outcome{Code: cmd.ProcessState.ExitCode(), Stdout: out.String(), Stderr: errOut.String()}, nil
}

// exitCodes of a verdict.
var exitCodes = map[schemas.Decision]int{schemas.Allow: 0, schemas.Deny: 1, schemas.Indeterminate: 2}

// Check judges the worktree by `aspis check --format json`.
func (w *World) Check(ctx context.Context, site schemas.CallSite, timeoutMs int, extra ...string) (*schemas.Verdict, string, error) {
	args := append([]string{"check", "--format", "json", "--call-site", string(site)}, extra...)
	if timeoutMs > 0 {
		args = append(args, "--timeout", fmt.Sprintf("%dms", timeoutMs))
	}
	o, err := w.Run(ctx, args...)
	if err != nil {
		return nil, "", err
	}
	v, err := ParseVerdict([]byte(o.Stdout))
	if err != nil {
		return nil, o.Stderr, fmt.Errorf("exit code %d: %w; stderr: %s", o.Code, err, lastLines(o.Stderr, 3))
	}
	if o.Code != exitCodes[v.Decision] {
		return nil, o.Stderr, fmt.Errorf("exit code %d for %s", o.Code, v.Decision)
	}
	return v, o.Stderr, nil
}

// ParseVerdict reads a verdict and checks it by its schema and its rules.
func ParseVerdict(raw []byte) (*schemas.Verdict, error) {
	if err := schemas.ValidateSchema("verdict", raw); err != nil {
		return nil, err
	}
	var v schemas.Verdict
	if err := json.Unmarshal(raw, &v, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("decode the verdict: %w", err)
	}
	return &v, VerdictHolds(&v)
}

// Fingerprint is a digest over every name, mode and byte below a directory.
func Fingerprint(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%q %v\n", path, info.Mode())
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(h, "%d\n%x\n", len(b), sha256.Sum256(b))
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(h, "%q\n", to)
		}
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)), err
}

// unchanged runs do and tells whether it left the repository as it was.
func (w *World) unchanged(do func() error) error {
	before, err := Fingerprint(w.Repo)
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	after, err := Fingerprint(w.Repo)
	if err == nil && before != after {
		err = errors.New("the repository is not as it was")
	}
	return err
}
