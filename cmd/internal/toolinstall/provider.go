package toolinstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/aspis-dev/aspis/cmd/internal/toolspec"
	"github.com/aspis-dev/aspis/host/artifact"
	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/schemas"
)

// Order says what provider to make of a tool.
type Order struct {
	Preset toolspec.Preset
	Found  Found
	// ID is the provider's; the preset's name unless given.
	ID string
	// Files is a directory with all that the tool needs and that it lies in, such
	// as one into which npm has installed it.
	Files string
	// Runner is the aspis-tool program.
	Runner string
	// Dir is where the provider's own directory is made, if it needs one. It must
	// not exist yet.
	Dir string
}

// systemPlaces are what a container with "system" shows of the machine.
var systemPlaces = []string{"/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/"}

// runnerName is the runner in a provider's own directory.
const runnerName = "aspis-tool"

// Make makes the provider's entry. What a tool needs is shown to it and no more,
// where that can be told: a static program gets its own directory and nothing
// else. The machine's programs and libraries are shown to the others.
func Make(ctx context.Context, o Order) (policy.Provider, error) {
	if o.ID == "" {
		o.ID = o.Preset.Name
	}
	version := o.Found.Version
	if version == "" {
		version = "unknown"
	}
	p := policy.Provider{
		ID: o.ID, Version: version, Capabilities: []schemas.CapabilityFamily{schemas.Check}, Workspace: "snapshot",
		Executable: o.Runner, Args: []string{"--id", o.ID, "--version", version}, System: o.Preset.Runtime == "system",
		Permissions: &schemas.Permissions{Read: []string{"**"}},
	}
	if o.Preset.MemoryMB > 0 || o.Preset.OpenFiles > 0 {
		p.Permissions.ResourceLimits = &schemas.ResourceLimits{}
		if o.Preset.MemoryMB > 0 {
			p.Permissions.ResourceLimits.MemoryMB = &o.Preset.MemoryMB
		}
		if o.Preset.OpenFiles > 0 {
			p.Permissions.ResourceLimits.FD = &o.Preset.OpenFiles
		}
	}
	program, digest, err := place(ctx, o, &p)
	if err != nil {
		return p, err
	}
	var says *toolspec.Version
	if !o.Found.Binary && o.Found.Version != "" {
		// The digest of a script says nothing of the modules that it loads.
		says = &toolspec.Version{Args: o.Preset.Version, Contains: o.Found.Version}
	}
	tool, err := o.Preset.Describe(program, digest, says)
	if err != nil {
		return p, err
	}
	if p.Configuration, err = json.Marshal(tool, json.Deterministic(true)); err != nil {
		return p, fmt.Errorf("encode the description: %w", err)
	}
	p.Digest, err = artifact.Digest(ctx, p.Executable, p.ArtifactDir)
	return p, err
}

// place decides where the tool lies inside, and makes the directory that it
// needs.
func place(ctx context.Context, o Order, p *policy.Provider) (program, digest string, err error) {
	switch {
	case o.Files != "":
		from, err := filepath.Abs(o.Files)
		if err != nil {
			return "", "", err
		}
		rel, err := filepath.Rel(from, o.Found.Path)
		if err != nil || strings.HasPrefix(rel, "../") || rel == ".." {
			return "", "", fmt.Errorf("%q is not in %q", o.Found.Path, from)
		}
		program = rel
		err = o.own(ctx, p, func() error { return copyTree(ctx, from, o.Dir) })
		return program, "", err
	case ofTheSystem(o.Found.Path) && ofTheSystem(o.Found.Real):
		p.System = true
		digest, err = artifact.Digest(ctx, o.Found.Real, "")
		return o.Found.Path, digest, err
	case o.Found.Binary:
		program = filepath.Base(o.Found.Real)
		p.System = p.System || !o.Found.Static
		err = o.own(ctx, p, func() error { return copyFile(o.Found.Real, filepath.Join(o.Dir, program), 0o755) })
		return program, "", err
	}
	return "", "", fmt.Errorf("%q is a script outside of the machine's own programs: give the directory that holds it and all that it loads with --files, or install it below /usr", o.Found.Path)
}

func ofTheSystem(path string) bool {
	for _, s := range systemPlaces {
		if strings.HasPrefix(path, s) {
			return true
		}
	}
	return false
}

// own makes the provider's directory: the runner, and what fill puts in.
func (o Order) own(_ context.Context, p *policy.Provider, fill func() error) (err error) {
	if err := os.MkdirAll(filepath.Dir(o.Dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(o.Dir, 0o755); err != nil {
		return fmt.Errorf("make a directory for the provider: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(o.Dir))
		}
	}()
	if err := fill(); err != nil {
		return fmt.Errorf("copy the tool: %w", err)
	}
	p.ArtifactDir, p.Executable = o.Dir, filepath.Join(o.Dir, runnerName)
	return copyFile(o.Runner, p.Executable, 0o755)
}

// Bounds of what is copied; the host refuses more.
const (
	maxFiles = 200_000
	maxBytes = 4 << 30
)

// copyTree copies files, links and directories, readable for everybody: a
// container has ids of its own.
func copyTree(ctx context.Context, from, to string) error {
	files, size := 0, int64(0)
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		rel, err := filepath.Rel(from, path)
		if err != nil || rel == "." {
			return err
		}
		if files++; files > maxFiles || size > maxBytes {
			return fmt.Errorf("%q has more than %d files or %d bytes", from, maxFiles, int64(maxBytes))
		}
		target := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return os.Mkdir(target, 0o755)
		case d.Type() == fs.ModeSymlink:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		size += info.Size()
		mode := fs.FileMode(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		return copyFile(path, target, mode)
	})
}

func copyFile(from, to string, mode fs.FileMode) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Chmod(mode) // whatever the umask
}
