package toolinstall

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/aspis-dev/aspis/cmd/internal/toolspec"
)

// Found is a tool on this machine.
type Found struct {
	// Path is where it was found, Real the file that links lead to.
	Path, Real string
	Version    string // "" where the tool does not tell
	// Binary is true of a compiled program, Static where it needs no libraries.
	Binary, Static bool
}

// ErrNotInstalled says that a tool is nowhere on this machine.
var ErrNotInstalled = errors.New("it is not installed")

// Find looks a preset's program up, in PATH unless a path is given, and asks it
// for its version. It runs the tool, as whoever calls this, outside of any
// sandbox.
func Find(ctx context.Context, p toolspec.Preset, program string) (Found, error) {
	if program == "" {
		program = p.Program
	}
	found, err := exec.LookPath(program)
	if err != nil {
		return Found{}, fmt.Errorf("%s: %w (%q is not found)", p.Name, ErrNotInstalled, program)
	}
	f := Found{}
	if f.Path, err = filepath.Abs(found); err != nil {
		return f, err
	}
	if f.Real, err = filepath.EvalSymlinks(f.Path); err != nil {
		return f, err
	}
	f.Binary, f.Static = kindOf(f.Real)
	f.Version = ask(ctx, p, f.Path)
	return f, nil
}

// kindOf tells compiled programs from scripts, and those that name a loader from
// those that do not.
func kindOf(path string) (binary, static bool) {
	f, err := elf.Open(path)
	if err != nil {
		return false, false
	}
	defer f.Close()
	for _, s := range f.Progs {
		if s.Type == elf.PT_INTERP {
			return true, false
		}
	}
	return true, true
}

// Bounds of asking for a version.
const (
	versionTime  = 20 * time.Second
	versionBytes = 64 << 10
)

func ask(ctx context.Context, p toolspec.Preset, path string) string {
	if len(p.Version) == 0 {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, versionTime)
	defer cancel()
	var out limited
	cmd := exec.CommandContext(ctx, path, p.Version...)
	cmd.Dir = os.TempDir()
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil && out.Len() == 0 {
		return ""
	}
	return versionIn(out.String(), p.VersionAt)
}

var anyVersion = regexp.MustCompile(`\bv?(\d+\.\d+(?:\.\d+)?[0-9A-Za-z.+-]*)`)

func versionIn(said, pattern string) string {
	re := anyVersion
	if pattern != "" {
		var err error
		if re, err = regexp.Compile(pattern); err != nil {
			return ""
		}
	}
	m := re.FindStringSubmatch(said)
	if len(m) < 2 {
		return ""
	}
	return strings.TrimSpace(m[1])
}

// limited keeps the first bytes of what is written to it.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := versionBytes - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}
