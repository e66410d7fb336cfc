package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/telemetry"
	"github.com/aspis-dev/aspis/host"
	"github.com/aspis-dev/aspis/host/receipt"
	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/container"
	"github.com/aspis-dev/aspis/sandbox/process"
)

// stateDir is where everything is kept: the XDG state directory, or for the
// machine's root /var/lib.
func stateDir() (string, error) {
	if dir := os.Getenv("ASPIS_STATE_DIR"); dir != "" {
		if !filepath.IsAbs(dir) {
			return "", fmt.Errorf("ASPIS_STATE_DIR is %q; give an absolute path", dir)
		}
		return filepath.Clean(dir), nil
	}
	who, err := container.CurrentIdentity()
	if err != nil {
		return "", err
	}
	if who.Root && who.HostID == 0 {
		return "/var/lib/aspis", nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "aspis"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find a place for state: %w; set ASPIS_STATE_DIR", err)
	}
	return filepath.Join(home, ".local/state/aspis"), nil
}

// enter makes sure that sandboxes can be built, which for an ordinary user
// means running the command again in a user namespace. done is true when that
// has happened and a.code is the answer.
func (a *app) enter(ctx context.Context) (why string, done bool, err error) {
	return a.enterWith(ctx, nil)
}

// enterWith hands a note to the command that is run again.
func (a *app) enterWith(ctx context.Context, note []byte) (why string, done bool, err error) {
	if _, inner := container.Inner(); !inner {
		// Before: a sandbox with ids of its own belongs to the user namespace of
		// the host that made it. The caller, who owns that, may end what is left
		// in it; a user namespace beside it may not.
		if err := a.collectLeftovers(ctx); err != nil {
			return "", false, err
		}
	}
	e, err := container.Enter(ctx, note)
	if err != nil {
		return "", false, err
	}
	a.code = e.Code
	return e.WhyNot, e.Child, nil
}

// collectLeftovers removes what killed hosts have left. What cannot be removed
// is in the way of nobody, so that it is only told.
func (a *app) collectLeftovers(ctx context.Context) error {
	state, err := stateDir()
	if err != nil {
		return err
	}
	left, err := container.CollectLeftovers(ctx, filepath.Join(state, "run"))
	for _, id := range left.Collected {
		a.logger().Warn("removed what a killed host had left", "sandbox", id)
	}
	if err != nil {
		a.logger().Warn("what a killed host has left could not be removed", "error", err)
	}
	return ctx.Err()
}

func (a *app) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// bench is an open workspace with everything that judges it.
type bench struct {
	state string
	repo  *gitrepo.Repo
	store *overlay.Store
	space *container.MountSpace
	host  *host.Host
	log   *slog.Logger
	sent  *telemetry.Sender

	sandboxes func() sandboxes // set by prepare
}

// sandboxes is what containers are built with, or why there are none.
type sandboxes struct {
	space   *container.MountSpace
	runtime sandbox.Runtime
	whyNot  string
}

// prepare begins to make ready for building containers, which takes some
// milliseconds and depends on nothing else. open waits for it; so does close.
func (b *bench) prepare(whyNot string) {
	if b.sandboxes != nil {
		return
	}
	if whyNot != "" {
		b.sandboxes = func() sandboxes { return sandboxes{whyNot: whyNot} }
		return
	}
	b.sandboxes = sync.OnceValue(func() sandboxes {
		space, err := container.NewSpace("")
		if err != nil {
			return sandboxes{whyNot: err.Error()}
		}
		rt, err := container.New(container.Options{StateDir: filepath.Join(b.state, "run"), Space: space})
		if err != nil {
			return sandboxes{space: space, whyNot: err.Error()}
		}
		return sandboxes{space: space, runtime: rt}
	})
	go b.sandboxes()
}

// openOptions choose what a bench is for.
type openOptions struct {
	whyNot    string // why no container can be built, if so
	baseTree  gitrepo.OID
	candidate gitrepo.OID // "" where there is none
	warm      bool
}

// openRepo opens the repository and the state directory.
func (a *app) openRepo(ctx context.Context) (*bench, error) {
	state, err := stateDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(state, 0o711); err != nil {
		return nil, stateError(state, err)
	}
	b := &bench{state: state, log: a.logger()}
	if b.repo, err = gitrepo.Open(ctx, a.repo, gitrepo.Options{StateDir: filepath.Join(state, "git")}); err != nil {
		return nil, err
	}
	if err := host.Recover(ctx, b.repo.Root(), state, b.log); err != nil {
		return nil, errors.Join(err, b.repo.Close())
	}
	return b, nil
}

func stateError(dir string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("the state directory %q cannot be used: %w; set ASPIS_STATE_DIR to a directory of yours", dir, err)
}

// open makes the rest: store, mount space, runtime, policy, host.
func (a *app) open(ctx context.Context, b *bench, o openOptions) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close(ctx))
		}
	}()
	b.prepare(o.whyNot)
	if b.store, err = overlay.Open(filepath.Join(b.state, "overlay")); err != nil {
		return err
	}
	effective, err := a.policy(ctx, b, o)
	if err != nil {
		return err
	}
	if b.sent, err = telemetry.New(ctx); err != nil {
		return err
	}
	made := b.sandboxes()
	b.space = made.space
	runtimes := map[string]sandbox.Runtime{"process": process.New()}
	if made.runtime != nil {
		runtimes["container"] = made.runtime
	}
	opt := host.Options{
		StateDir: b.state, Version: a.version, Policy: effective, Warm: o.warm, Log: b.log,
		Protect: b.protected(), Observe: b.sent.Observe,
		Runtime: func(name string) (sandbox.Runtime, string) {
			if rt, ok := runtimes[name]; ok {
				return rt, ""
			}
			return nil, made.whyNot
		},
	}
	for _, w := range a.without {
		opt.Without = append(opt.Without, sandbox.WallName(w))
	}
	b.host, err = host.New(opt)
	return err
}

// protected lists what no provider may reach.
func (b *bench) protected() []string {
	paths := []string{b.state, b.repo.CommonDir()}
	if root := b.repo.Root(); root != "" {
		paths = append(paths, root)
	}
	if home, err := os.UserHomeDir(); err == nil {
		paths = append(paths, home)
	}
	var out []string
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil && p != "/" {
			out = append(out, p)
		}
	}
	return out
}

func (b *bench) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	var errs []error
	if b.host != nil {
		errs = append(errs, b.host.Close(ctx))
	}
	if b.sandboxes != nil {
		if space := b.sandboxes().space; space != nil {
			errs = append(errs, space.Close())
		}
	}
	if b.store != nil {
		// What could not go now is in nobody's way.
		if err := b.store.Tidy(ctx); err != nil {
			b.log.Warn("the snapshot store was not tidied", "error", err)
		}
	}
	if err := b.sent.Close(ctx); err != nil {
		b.log.Warn("telemetry was not sent", "error", err)
	}
	return errors.Join(append(errs, b.repo.Close())...)
}

// maxPolicy bounds .asp/asp.json and .asp/local.json, in bytes.
const maxPolicy = 1 << 20

// policy loads every layer for a change.
func (a *app) policy(ctx context.Context, b *bench, o openOptions) (*policy.Effective, error) {
	src := policy.Sources{FloorPath: "/etc/aspis/floor.json", SystemPath: "/etc/aspis/config.json", ConfigPath: a.config, Shipped: a.shipped(ctx)}
	if dir, err := os.UserConfigDir(); err == nil {
		src.UserPath = filepath.Join(dir, "aspis/config.json")
	}
	if a.config != "" {
		abs, err := filepath.Abs(a.config)
		if err != nil {
			return nil, err
		}
		src.ConfigPath = abs
	}
	if a.alone {
		return policy.Load(policy.Sources{ConfigPath: src.ConfigPath})
	}
	text, ok, err := b.repo.BlobAt(ctx, o.baseTree, policy.RepositoryFile, maxPolicy)
	if err != nil {
		return nil, err
	}
	if ok {
		src.Repository = text
	}
	if o.candidate != "" && o.candidate != o.baseTree {
		cand, there, err := b.repo.BlobAt(ctx, o.candidate, policy.RepositoryFile, maxPolicy)
		if err != nil {
			return nil, err
		}
		src.Candidate, src.CandidateGone = cand, ok && !there
	}
	if root := b.repo.Root(); root != "" {
		if f, err := os.Open(filepath.Join(root, policy.LocalFile)); err == nil {
			defer f.Close()
			if src.Local, err = io.ReadAll(io.LimitReader(f, maxPolicy)); err != nil {
				return nil, fmt.Errorf("read %s: %w", policy.LocalFile, err)
			}
		}
	}
	return policy.Load(src)
}

// shippedName is the provider that comes with aspis.
const shippedName = "aspis-hygiene"

// shipped finds it beside this program or in its libexec directory.
func (a *app) shipped(ctx context.Context) func() (policy.Shipped, error) {
	return func() (policy.Shipped, error) {
		self, err := os.Executable()
		if err != nil {
			return policy.Shipped{}, err
		}
		if self, err = filepath.EvalSymlinks(self); err != nil {
			return policy.Shipped{}, err
		}
		dir := filepath.Dir(self)
		places := []string{filepath.Join(dir, shippedName), filepath.Join(dir, "../libexec/aspis", shippedName)}
		i := slices.IndexFunc(places, func(p string) bool { _, err := os.Stat(p); return err == nil })
		if i < 0 {
			return policy.Shipped{}, fmt.Errorf("%s is neither beside %s nor in libexec/aspis; install it there, or write a configuration (aspis policy init)", shippedName, self)
		}
		digest, err := shippedDigest(ctx, places[i])
		if err != nil {
			return policy.Shipped{}, err
		}
		return policy.Shipped{ID: shippedName, Version: a.version, Executable: filepath.Clean(places[i]), Digest: digest}, nil
	}
}

func digestOf(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), ctx.Err()
}

// receipts opens the log alone, for commands that only look.
func (a *app) receipts() (*receipt.Log, error) {
	state, err := stateDir()
	if err != nil {
		return nil, err
	}
	log, err := receipt.Open(filepath.Join(state, "receipts"))
	if err != nil {
		return nil, stateError(state, err)
	}
	return log, nil
}

// place describes the workspace for answers that judge no change.
func (b *bench) place(ctx context.Context) (host.Place, gitrepo.OID, error) {
	baseline, tree, err := b.repo.Current(ctx)
	if err != nil {
		return host.Place{}, "", err
	}
	root := b.repo.Root()
	if root == "" {
		root = b.repo.CommonDir()
	}
	now := time.Now().UTC()
	baseline.StampedAt = &now
	return host.Place{Root: root, Baseline: baseline}, tree, nil
}

// blobStore opens the store alone.
func (a *app) blobStore() (*overlay.Store, error) {
	state, err := stateDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(state, 0o711); err != nil {
		return nil, stateError(state, err)
	}
	return overlay.Open(filepath.Join(state, "overlay"))
}
