package conformance

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// HostOptions say which host is tested and how it is started.
type HostOptions struct {
	Bin string
	// Args starts the host; {config} and {repo} are replaced. Empty means
	// DefaultHostArgs.
	Args []string
	// TestProvider is the program that plays every provider; its arguments say
	// how it behaves.
	TestProvider string
	// Credential runs the host as another user, which owns everything made.
	Credential *syscall.Credential
	// Dir is where everything is made; empty means the default for temporary files.
	Dir string
}

// DefaultHostArgs start aspis.
var DefaultHostArgs = []string{"--config", "{config}", "host", "serve", "--repo", "{repo}"}

// Config is trusted configuration as the suite writes it; {config} is such a
// file, and a host with another format translates it.
type Config struct {
	Version      string                 `json:"version"`
	Providers    []Provider             `json:"providers"`
	Requirements []schemas.Requirement  `json:"requirements"`
	Gates        schemas.PolicyGates    `json:"gates"`
	Grants       []Grant                `json:"grants"`
	Budgets      *schemas.PolicyBudgets `json:"budgets,omitzero"`
	Quarantine   *Quarantine            `json:"quarantine,omitzero"`
	Apply        *ApplyRules            `json:"apply,omitzero"`
}

// ApplyRules say which edits may be published, beyond what always may.
type ApplyRules struct {
	HandedIn []string `json:"handedIn,omitzero"`
	OnDrift  string   `json:"onDrift,omitzero"`
}

// Provider is an installed provider.
type Provider struct {
	ID            string                     `json:"id"`
	Version       string                     `json:"version"`
	Capabilities  []schemas.CapabilityFamily `json:"capabilities"`
	Executable    string                     `json:"executable"`
	Args          []string                   `json:"args,omitzero"`
	Digest        string                     `json:"digest"`
	Configuration jsontext.Value             `json:"configuration,omitzero"`
	Permissions   *schemas.Permissions       `json:"permissions,omitzero"`
	// Runtime process means that the provider is not confined.
	Runtime string `json:"runtime,omitzero"`
	// Workspace snapshot means that candidate and baseline are mounted for it.
	Workspace string `json:"workspace,omitzero"`
}

// Grant gives a provider authority.
type Grant struct {
	Requirement string             `json:"requirement"`
	CallSites   []schemas.CallSite `json:"callSites"`
	Provider    string             `json:"provider"`
	Version     string             `json:"version"`
	Integrity   string             `json:"integrity"`
	SeverityCap schemas.Severity   `json:"severityCap,omitzero"`
}

// Quarantine is when a failing provider is set aside.
type Quarantine struct {
	Failures   *int `json:"failures,omitzero"`
	DurationMs *int `json:"durationMs,omitzero"`
}

// World is one repository with configuration and state of its own.
type World struct {
	opt    HostOptions
	Dir    string
	Repo   string
	State  string
	Config string
	Files  map[string]string // the baseline
	// Flags go before the host's other arguments.
	Flags []string
	// Env is added to the host's environment.
	Env   []string
	peers []*Peer
}

// baselineFiles is the repository that every world begins with.
func baselineFiles() map[string]string {
	return map[string]string{
		"README.md": "A small repository.\n", "src/main.go": "package main\n\nfunc main() {}\n",
		"src/old.go": "package main\n\nvar old = 1\n", "data/blob.bin": "\x00\x01\xff\xfe", "data/empty": "",
	}
}

// NewWorld makes a repository with one commit.
func NewWorld(ctx context.Context, opt HostOptions, cfg *Config) (*World, error) {
	dir, err := os.MkdirTemp(opt.Dir, "asp-conformance-")
	if err != nil {
		return nil, err
	}
	w := &World{opt: opt, Dir: dir, Repo: filepath.Join(dir, "repo"), State: filepath.Join(dir, "state"),
		Config: filepath.Join(dir, "config.json"), Files: baselineFiles()}
	for _, d := range []string{w.Repo, filepath.Join(dir, "home")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	for path, text := range w.Files {
		if err := w.Write(path, text); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	if err := w.WriteConfig(cfg); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	if err := w.own(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "-A"}, {"commit", "-q", "-m", "Start"}} {
		if _, err := w.Git(ctx, args...); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	return w, nil
}

// own gives everything to the user that the host runs as.
func (w *World) own() error {
	c := w.opt.Credential
	if c == nil {
		return nil
	}
	return filepath.WalkDir(w.Dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(c.Uid), int(c.Gid))
	})
}

// WriteConfig replaces trusted configuration.
func (w *World) WriteConfig(cfg *Config) error {
	b, err := schemas.Marshal(cfg)
	if err != nil {
		return err
	}
	return os.WriteFile(w.Config, b, 0o644)
}

// Write puts a file into the worktree.
func (w *World) Write(path, text string) error {
	full := filepath.Join(w.Repo, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return err
	}
	return os.WriteFile(full, []byte(text), 0o644)
}

// Commit adds everything and commits; the baseline is what it was.
func (w *World) Commit(ctx context.Context, text string) error {
	if err := w.own(); err != nil {
		return err
	}
	if _, err := w.Git(ctx, "add", "-A"); err != nil {
		return err
	}
	_, err := w.Git(ctx, "commit", "-q", "-m", text)
	return err
}

// Git runs git in the repository, with no configuration but its own.
func (w *World) Git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", w.Repo, "-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Env = append(w.env(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null")
	if w.opt.Credential != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: w.opt.Credential}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

func (w *World) env() []string {
	home := filepath.Join(w.Dir, "home")
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_CONFIG_HOME=" + filepath.Join(home, ".config"),
		"XDG_STATE_HOME=" + filepath.Join(home, ".state"), "LANG=C.UTF-8", "ASPIS_STATE_DIR=" + w.State}
	if dir := os.Getenv("GOCOVERDIR"); dir != "" {
		env = append(env, "GOCOVERDIR="+dir)
	}
	return append(env, w.Env...)
}

// command prepares a run of the host's program.
func (w *World) command(args ...string) *exec.Cmd {
	cmd := exec.Command(w.opt.Bin, args...)
	cmd.Env, cmd.Dir = w.env(), w.Dir
	if w.opt.Credential != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: w.opt.Credential}
	}
	return cmd
}

// Serve starts the host on the repository.
func (w *World) Serve(extra ...string) (*Host, error) {
	args := w.opt.Args
	if len(args) == 0 {
		args = DefaultHostArgs
	}
	var out []string
	for _, a := range args {
		out = append(out, strings.NewReplacer("{config}", w.Config, "{repo}", w.Repo).Replace(a))
	}
	p, err := startPeer(w.command(append(append(append([]string{}, w.Flags...), out...), extra...)...), nil)
	if err != nil {
		return nil, err
	}
	w.peers = append(w.peers, p)
	return &Host{Peer: p, world: w}, nil
}

// Close ends what still runs and removes everything.
func (w *World) Close() error {
	var errs []error
	for _, p := range w.peers {
		select {
		case <-p.ended:
		default:
			if err := p.Close(20 * time.Second); err != nil {
				errs = append(errs, err)
			}
		}
		errs = append(errs, p.Breaches())
	}
	w.peers = nil
	if err := os.RemoveAll(w.Dir); err != nil {
		errs = append(errs, fmt.Errorf("what the host left could not be removed: %w", err))
	}
	return errors.Join(errs...)
}

// FileDigest is sha256:<hex> of a file.
func FileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}
