package gitrepo

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

	"github.com/go-json-experiment/json"
	"github.com/google/renameio/v2"
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
	lookup lookup
	index  knownIndex
}

// Open finds the repository that dir lies in and makes its shadow ready.
func Open(ctx context.Context, dir string, opt Options) (*Repo, error) {
	p, err := find(dir)
	if err != nil {
		return nil, err
	}
	r := &Repo{place: p, git: opt.Git}
	if r.git == "" {
		if r.git, err = exec.LookPath("git"); err != nil {
			return nil, fmt.Errorf("aspis needs git: %w; install it (apt-get install git)", err)
		}
	}
	r.shadow = filepath.Join(opt.StateDir, r.ID())
	if err := r.makeShadow(ctx); err != nil {
		return nil, err
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

// wanted are the few settings without which git would read the worktree
// wrongly. They are read as data; none of them names a command.
var wanted = []string{"core.filemode", "core.ignorecase", "core.symlinks", "core.precomposeunicode", "core.sparsecheckout", "core.sparsecheckoutcone",
	"core.protecthfs", "core.protectntfs", "index.sparse", "extensions.objectformat", "extensions.refstorage", "extensions.partialclone"}

func (r *Repo) makeShadow(ctx context.Context) error {
	for _, d := range []string{"objects/info", "objects/pack", "info"} {
		if err := os.MkdirAll(filepath.Join(r.shadow, d), 0o700); err != nil {
			return fmt.Errorf("make the shadow git directory: %w", err)
		}
	}
	settings, err := r.readSettings(ctx)
	if err != nil {
		return err
	}
	if s := settings["extensions.refstorage"]; s != "" && s != "files" {
		return &DamagedError{Doing: "read the refs", Detail: fmt.Sprintf("the repository keeps its refs as %q, which is not supported yet", s)}
	}
	r.format = "sha1"
	if f := settings["extensions.objectformat"]; f != "" {
		r.format = f
	}
	files := map[string]string{
		"config":                  r.config(settings),
		"objects/info/alternates": quoteAlternate(filepath.Join(r.place.common, "objects")) + "\n",
		"info/exclude":            r.excludes(),
	}
	if err := r.syncHead(); err != nil {
		return err
	}
	for name, text := range files {
		if err := replaceFile(filepath.Join(r.shadow, name), text); err != nil {
			return fmt.Errorf("make the shadow git directory: %w", err)
		}
	}
	for name, target := range map[string]string{
		"refs": filepath.Join(r.place.common, "refs"), "packed-refs": filepath.Join(r.place.common, "packed-refs"),
		"shallow": filepath.Join(r.place.common, "shallow"), "info/sparse-checkout": filepath.Join(r.place.gitDir, "info/sparse-checkout"),
	} {
		if err := replaceLink(target, filepath.Join(r.shadow, name)); err != nil {
			return fmt.Errorf("make the shadow git directory: %w", err)
		}
	}
	return nil
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

// settingsFile, in the shadow, keeps what readSettings found.
const settingsFile = "settings.json"

// keptSettings are good for files with exactly this content.
type keptSettings struct {
	Digest string            `json:"digest"`
	Values map[string]string `json:"values"`
}

// maxConfig bounds a configuration file, in bytes.
const maxConfig = 4 << 20

// readSettings reads the wanted keys of the repository's configuration file
// and of the one that a linked worktree may have, without following includes.
// Git is asked only about files that it was not asked about before.
func (r *Repo) readSettings(ctx context.Context) (map[string]string, error) {
	var files []string
	sum := sha256.New()
	fmt.Fprintf(sum, "%q\n", wanted)
	for _, file := range []string{filepath.Join(r.place.common, "config"), filepath.Join(r.place.gitDir, "config.worktree")} {
		text, err := readBounded(file, maxConfig)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, &DamagedError{Doing: "read " + file, Detail: err.Error()}
		}
		files = append(files, file)
		fmt.Fprintf(sum, "%q %d\n%s", file, len(text), text)
	}
	kept := keptSettings{}
	digest := hex.EncodeToString(sum.Sum(nil))
	if b, err := readBounded(filepath.Join(r.shadow, settingsFile), maxConfig); err == nil && json.Unmarshal(b, &kept) == nil && kept.Digest == digest {
		return kept.Values, nil
	}
	kept = keptSettings{Digest: digest, Values: map[string]string{}}
	for _, file := range files {
		if err := r.addSettings(ctx, file, kept.Values); err != nil {
			return nil, err
		}
	}
	b, err := json.Marshal(kept, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("keep the repository's settings: %w", err)
	}
	if err := replaceFile(filepath.Join(r.shadow, settingsFile), string(b)); err != nil {
		return nil, fmt.Errorf("keep the repository's settings: %w", err)
	}
	return kept.Values, nil
}

func (r *Repo) addSettings(ctx context.Context, file string, out map[string]string) error {
	b, err := r.run(ctx, runOptions{bare: true, limit: maxConfig, doing: "read " + file},
		"config", "--file", file, "--no-includes", "-z", "--list")
	if err != nil {
		return err
	}
	for entry := range strings.SplitSeq(string(b), "\x00") {
		key, value, ok := strings.Cut(entry, "\n")
		if !ok {
			value = "true"
		}
		for _, w := range wanted {
			if strings.EqualFold(key, w) {
				out[w] = value
			}
		}
	}
	return nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it is over %d bytes", limit)
	}
	return b, err
}

func (r *Repo) config(settings map[string]string) string {
	var b strings.Builder
	version := 0
	if r.format != "sha1" {
		version = 1
	}
	fmt.Fprintf(&b, "[core]\n\trepositoryformatversion = %d\n\tbare = false\n\tlogallrefupdates = false\n", version)
	for _, key := range []string{"filemode", "ignorecase", "symlinks", "precomposeunicode", "sparsecheckout", "sparsecheckoutcone", "protecthfs", "protectntfs"} {
		switch strings.ToLower(settings["core."+key]) {
		case "true", "1", "yes", "on":
			fmt.Fprintf(&b, "\t%s = true\n", key)
		case "false", "0", "no", "off":
			fmt.Fprintf(&b, "\t%s = false\n", key)
		}
	}
	if version == 1 {
		fmt.Fprintf(&b, "[extensions]\n\tobjectformat = %s\n", map[bool]string{true: "sha256", false: "sha1"}[r.format == "sha256"])
	}
	b.WriteString("[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n")
	return b.String()
}

// excludes joins the repository's own exclude file with the user's global one,
// which git would have found by configuration that is not loaded here.
func (r *Repo) excludes() string {
	var parts []string
	for _, file := range []string{globalIgnore(), filepath.Join(r.place.common, "info/exclude")} {
		if file == "" {
			continue
		}
		if st, err := os.Stat(file); err != nil || !st.Mode().IsRegular() || st.Size() > 1<<20 {
			continue
		}
		if b, err := os.ReadFile(file); err == nil {
			parts = append(parts, string(b))
		}
	}
	return strings.Join(parts, "\n")
}

// globalIgnore is git's default place for a user's ignore rules (gitignore(5)).
func globalIgnore() string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "git/ignore")
	}
	if home := os.Getenv("HOME"); home != "" {
		return filepath.Join(home, ".config/git/ignore")
	}
	return ""
}

// quoteAlternate quotes a path for objects/info/alternates, where a line that
// begins with a double quote is a C-style string (gitrepository-layout(5)).
func quoteAlternate(path string) string {
	if !strings.ContainsAny(path, "\n\"\\#") {
		return path
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(path) + `"`
}

// replaceFile writes a file only when its text differs, and then atomically:
// several processes may share a shadow.
func replaceFile(path, text string) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == text {
		return nil
	}
	return renameio.WriteFile(path, []byte(text), 0o600)
}

func replaceLink(target, link string) error {
	if old, err := os.Readlink(link); err == nil && old == target {
		return nil
	}
	err := renameio.Symlink(target, link)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}
