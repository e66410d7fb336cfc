package gitrepo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// Options say where shadow git directories live and which git is used.
type Options struct {
	StateDir string // shadow git directories are made below it
	Git      string // path of the git binary; looked up in PATH when empty
}

// Repo is an open repository. It may be used from several goroutines.
type Repo struct {
	place  place
	shadow string
	git    string
	format string // sha1 or sha256
	memory uint64 // that one git may use for its own data, in bytes
	lookup lookup
	index  knownIndex

	// mu guards what is written of the repository's settings into the shadow.
	mu   sync.Mutex
	kept keptSettings
}

// maxMemory is what one git may take for itself, in bytes: a tree of a few
// kilobytes can make it list entries until the machine has none left. Mapped
// packs do not count.
const maxMemory = 2 << 30

// Open finds the repository that dir lies in and makes its shadow ready.
//
// Errors: *NotARepositoryError; *UnsupportedRepositoryError for one of a kind
// that would be misread; *DamagedError where its configuration or its HEAD
// cannot be read.
func Open(ctx context.Context, dir string, opt Options) (*Repo, error) {
	p, err := find(dir)
	if err != nil {
		return nil, err
	}
	r := &Repo{place: p, git: opt.Git, memory: maxMemory}
	if r.git == "" {
		if r.git, err = exec.LookPath("git"); err != nil {
			return nil, fmt.Errorf("aspis needs git: %w; install it (apt-get install git)", err)
		}
	}
	state, err := filepath.Abs(opt.StateDir)
	if err != nil {
		return nil, fmt.Errorf("make the shadow git directory: %w", err)
	}
	r.shadow = filepath.Join(state, r.ID())
	if err := r.makeShadow(ctx); err != nil {
		return nil, err
	}
	if err := r.sweep(time.Now()); err != nil {
		return nil, fmt.Errorf("tidy the shadow git directory: %w", err)
	}
	return r, nil
}

// Close ends the git that was kept for looking things up.
func (r *Repo) Close() error { return r.closeLookup() }

// Root is the top of the worktree, or "" in a bare repository.
func (r *Repo) Root() string { return r.place.root }

// CommonDir is the git directory that holds the objects.
func (r *Repo) CommonDir() string { return r.place.common }

// ID names the worktree by the place of its git directory.
func (r *Repo) ID() string {
	sum := sha256.Sum256([]byte(r.place.common + "\x00" + r.place.gitDir))
	return hex.EncodeToString(sum[:12])
}

// links are what git finds through the shadow, by name: refs with their logs,
// which tell what @{1} is, and what a fetch or a merge left behind.
func (p place) links() map[string]string {
	out := map[string]string{}
	for _, name := range []string{"refs", "packed-refs", "shallow"} {
		out[name] = filepath.Join(p.common, name)
	}
	for _, name := range []string{"info/sparse-checkout", "FETCH_HEAD", "ORIG_HEAD", "MERGE_HEAD", "REBASE_HEAD", "CHERRY_PICK_HEAD"} {
		out[name] = filepath.Join(p.gitDir, name)
	}
	// As a whole where that can be: git reads no log that is a link itself.
	if p.linked() {
		out["logs/refs"] = filepath.Join(p.common, "logs/refs")
		out["logs/HEAD"] = filepath.Join(p.gitDir, "logs/HEAD")
	} else {
		out["logs"] = filepath.Join(p.common, "logs")
	}
	return out
}

func (r *Repo) makeShadow(ctx context.Context) error {
	dirs := []string{"objects/info", "objects/pack", "info"}
	if r.place.linked() {
		dirs = append(dirs, "logs")
	}
	for _, d := range dirs {
		if err := os.MkdirAll(filepath.Join(r.shadow, d), 0o700); err != nil {
			return fmt.Errorf("make the shadow git directory: %w", err)
		}
	}
	s, err := r.readSettings(ctx)
	if err != nil {
		return err
	}
	if r.place, err = s.judge(r.place); err != nil {
		return err
	}
	r.format = "sha1"
	if s["extensions.objectformat"] == "sha256" {
		r.format = "sha256"
	}
	for name, target := range r.place.links() {
		if err := replaceLink(target, filepath.Join(r.shadow, name)); err != nil {
			return fmt.Errorf("make the shadow git directory: %w", err)
		}
	}
	alternates := quoteAlternate(filepath.Join(r.place.common, "objects")) + "\n"
	if err := replaceFile(filepath.Join(r.shadow, "objects/info/alternates"), alternates); err != nil {
		return fmt.Errorf("make the shadow git directory: %w", err)
	}
	if err := r.syncHead(); err != nil {
		return err
	}
	return r.syncRules(ctx)
}

// syncHead makes the shadow's HEAD that of the repository, which changes when
// another branch is checked out.
func (r *Repo) syncHead() error {
	head, err := readSmall(filepath.Join(r.place.gitDir, "HEAD"))
	if err != nil {
		return &DamagedError{Doing: "read HEAD", Detail: err.Error()}
	}
	if err := replaceFile(filepath.Join(r.shadow, "HEAD"), head+"\n"); err != nil {
		return fmt.Errorf("copy HEAD: %w", err)
	}
	return nil
}

// syncRules takes over the settings, ignore rules and attributes by which the
// worktree is to be read, which may have changed since it was read last.
func (r *Repo) syncRules(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.readSettings(ctx)
	if err != nil {
		return err
	}
	p, err := s.judge(r.place)
	if err != nil {
		return err
	}
	if p != r.place || (s["extensions.objectformat"] == "sha256") != (r.format == "sha256") {
		return &UnsupportedRepositoryError{Dir: r.place.gitDir, Why: "has become one of another kind while it was open", Advice: "start again"}
	}
	attributes, err := readOptional(filepath.Join(r.place.common, "info/attributes"), maxRules)
	if err != nil {
		return &DamagedError{Doing: "read attributes", Detail: err.Error()}
	}
	excludes, err := r.excludes(s)
	if err != nil {
		return err
	}
	for name, text := range map[string]string{"config": s.config(), "info/attributes": string(attributes), "info/exclude": excludes} {
		if err := replaceFile(filepath.Join(r.shadow, name), text); err != nil {
			return fmt.Errorf("take over the repository's settings: %w", err)
		}
	}
	return nil
}

// excludes joins the user's own ignore rules, which git would have found by
// configuration that is not loaded here, with those of the repository, which
// come last and so win.
func (r *Repo) excludes(s settings) (string, error) {
	user, err := readOptional(s.excludesFile(r.place.root), maxRules)
	if err != nil && !errors.Is(err, os.ErrPermission) { // git passes over one that it may not read
		return "", &DamagedError{Doing: "read ignore rules", Detail: err.Error()}
	}
	own, err := readOptional(filepath.Join(r.place.common, "info/exclude"), maxRules)
	if err != nil {
		return "", &DamagedError{Doing: "read ignore rules", Detail: err.Error()}
	}
	mark := []byte("\ufeff")
	return string(bytes.TrimPrefix(user, mark)) + "\n" + string(bytes.TrimPrefix(own, mark)), nil
}

// isPartial tells that objects may be missing by intent.
func (r *Repo) isPartial() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept.Values["extensions.partialclone"] != "" || r.kept.Values.yes(promisor)
}

// rules are the files that decide how the worktree is read.
func (r *Repo) rules() []string {
	r.mu.Lock()
	s := r.kept.Values
	r.mu.Unlock()
	files := []string{filepath.Join(r.place.common, "config"), filepath.Join(r.place.gitDir, "config.worktree"),
		filepath.Join(r.place.common, "info/exclude"), filepath.Join(r.place.common, "info/attributes"), s.excludesFile(r.place.root),
		filepath.Join(r.place.gitDir, "info/sparse-checkout"), userFile("git/config")}
	if home := os.Getenv("HOME"); home != "" {
		files = append(files, filepath.Join(home, ".gitconfig"))
	}
	return files
}
