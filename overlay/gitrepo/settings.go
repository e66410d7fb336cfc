package gitrepo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
)

// wanted are the few settings without which git would read the worktree
// otherwise than the user's own git. They are read as data; none of them names
// a command. Keys that begin with "extensions." are read too, to see what kind
// of repository it is.
var wanted = []string{"core.bare", "core.worktree", "core.repositoryformatversion", "core.filemode", "core.ignorecase", "core.symlinks",
	"core.precomposeunicode", "core.sparsecheckout", "core.sparsecheckoutcone", "core.protecthfs", "core.protectntfs",
	"core.autocrlf", "core.eol", "core.excludesfile", "user.name", "user.email"}

// ofTheUser are those that a user's own configuration has a say in.
var ofTheUser = []string{"core.autocrlf", "core.eol", "core.excludesfile", "user.name", "user.email"}

// promisor is noted where a remote is said to hold what the clone leaves out.
const promisor = "aspis.promisor"

// known are the extensions that change nothing of what is read here, or that
// are dealt with (Documentation/config/extensions of git).
var known = []string{"extensions.noop", "extensions.noop-v1", "extensions.preciousobjects", "extensions.partialclone", "extensions.worktreeconfig",
	"extensions.objectformat", "extensions.compatobjectformat", "extensions.refstorage", "extensions.relativeworktrees"}

// settings are keys in lower case with their last values.
type settings map[string]string

func (s settings) yes(key string) bool {
	switch strings.ToLower(s[key]) {
	case "true", "yes", "on", "1":
		return true
	}
	return false
}

// settingsFile, in the shadow, keeps what readSettings found.
const settingsFile = "settings.json"

// keptSettings are good for files with exactly this content.
type keptSettings struct {
	Digest string   `json:"digest"`
	Values settings `json:"values"`
}

// configFile is one configuration file and what it may decide.
type configFile struct {
	path string
	user bool // the user's own, not the repository's
	text []byte
}

// configFiles are those that git would read for this repository, weakest first,
// but for the system's.
func (r *Repo) configFiles() ([]configFile, error) {
	files := []configFile{{path: userFile("git/config"), user: true}}
	if home := os.Getenv("HOME"); home != "" {
		files = append(files, configFile{path: filepath.Join(home, ".gitconfig"), user: true})
	}
	files = append(files, configFile{path: filepath.Join(r.place.common, "config")},
		configFile{path: filepath.Join(r.place.gitDir, "config.worktree")})
	out := files[:0]
	for _, f := range files {
		if f.path == "" {
			continue
		}
		var err error
		if f.text, err = readOptional(f.path, maxRules); err != nil && (!f.user || !errors.Is(err, os.ErrPermission)) {
			return nil, &DamagedError{Doing: "read the configuration", Detail: err.Error()}
		}
		if len(f.text) > 0 {
			out = append(out, f)
		}
	}
	return out, nil
}

// readSettings reads the wanted keys without following includes. Git is asked
// only about files that it was not asked about before.
func (r *Repo) readSettings(ctx context.Context) (settings, error) {
	files, err := r.configFiles()
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %q %q\n", wanted, ofTheUser, known)
	for _, f := range files {
		fmt.Fprintf(sum, "%q %t %d\n%s", f.path, f.user, len(f.text), f.text)
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	if r.kept.Digest == digest {
		return r.kept.Values, nil
	}
	kept := keptSettings{}
	name := filepath.Join(r.shadow, settingsFile)
	if b, err := readBounded(name, maxRules); err != nil || json.Unmarshal(b, &kept) != nil || kept.Digest != digest {
		kept = keptSettings{Digest: digest, Values: settings{}}
		for _, f := range files {
			if err := r.addSettings(ctx, f, kept.Values); err != nil {
				return nil, err
			}
		}
		b, err := json.Marshal(kept, json.Deterministic(true))
		if err != nil {
			return nil, fmt.Errorf("keep the repository's settings: %w", err)
		}
		if err := replaceFile(name, string(b)); err != nil {
			return nil, fmt.Errorf("keep the repository's settings: %w", err)
		}
	}
	r.kept = kept
	return kept.Values, nil
}

// addSettings adds what one file says.
func (r *Repo) addSettings(ctx context.Context, f configFile, out settings) error {
	worktree := !f.user && filepath.Base(f.path) == "config.worktree"
	if worktree && !out.yes("extensions.worktreeconfig") {
		return nil // git does not read it either
	}
	// What was read is what is asked about, also if the file changes meanwhile.
	b, err := r.run(ctx, runOptions{bare: true, stdin: strings.NewReader(string(f.text)), limit: maxRules, doing: "read " + f.path},
		"config", "--file", "-", "--no-includes", "-z", "--list")
	if err != nil {
		return err
	}
	for entry := range strings.SplitSeq(string(b), "\x00") {
		key, value, ok := strings.Cut(entry, "\n")
		if !ok {
			value = "true"
		}
		// Of a subsection the case counts; those that are wanted have none.
		low := strings.ToLower(key)
		switch {
		case f.user && !slices.Contains(ofTheUser, low):
		case !worktree && r.place.linked() && (low == "core.bare" || low == "core.worktree"):
			// They tell of the main worktree (git-worktree(1)).
		case slices.Contains(wanted, low), strings.HasPrefix(low, "extensions."):
			out[low] = value
		case strings.HasPrefix(low, "remote.") && strings.HasSuffix(low, ".promisor"):
			out[promisor] = value
		}
	}
	return nil
}

// judge refuses a repository that would be misread, and tells whether it has a
// worktree.
func (s settings) judge(p place) (place, error) {
	unsupported := func(why, advice string) (place, error) {
		return p, &UnsupportedRepositoryError{Dir: p.gitDir, Why: why, Advice: advice}
	}
	if v := s["core.repositoryformatversion"]; v != "" && v != "0" && v != "1" {
		return unsupported(fmt.Sprintf("has the format version %q", v), "use an aspis that knows it")
	}
	for key := range s {
		if strings.HasPrefix(key, "extensions.") && !slices.Contains(known, key) && s["core.repositoryformatversion"] == "1" {
			return unsupported(fmt.Sprintf("has the extension %q, which is not known", key), "use an aspis that knows it")
		}
	}
	if f := s["extensions.objectformat"]; f != "" && f != "sha1" && f != "sha256" {
		return unsupported(fmt.Sprintf("names its objects by %q", f), "use an aspis that knows it")
	}
	if f := s["extensions.refstorage"]; f != "" && f != "files" {
		return unsupported(fmt.Sprintf("keeps its refs as %q, which is not read", f), "run: git refs migrate --ref-format=files")
	}
	top := s["core.worktree"]
	if top == "" {
		if s.yes("core.bare") {
			p.root = ""
		}
		return p, nil
	}
	if !filepath.IsAbs(top) {
		top = filepath.Join(p.gitDir, top)
	}
	if real, err := filepath.EvalSymlinks(top); err != nil || real != p.root {
		return unsupported(fmt.Sprintf("says that its worktree is at %q (core.worktree)", top), "name that directory with --repo, or unset core.worktree")
	}
	return p, nil
}

// config is the shadow's whole configuration.
func (s settings) config() string {
	var b strings.Builder
	version := 0
	if s["extensions.objectformat"] == "sha256" {
		version = 1
	}
	fmt.Fprintf(&b, "[core]\n\trepositoryformatversion = %d\n\tbare = false\n\tlogallrefupdates = false\n\tsafecrlf = false\n\tsplitindex = false\n", version)
	for _, key := range []string{"filemode", "ignorecase", "symlinks", "precomposeunicode", "sparsecheckout", "sparsecheckoutcone", "protecthfs", "protectntfs", "autocrlf"} {
		if value := strings.ToLower(s["core."+key]); key == "autocrlf" && value == "input" {
			b.WriteString("\tautocrlf = input\n")
		}
		switch strings.ToLower(s["core."+key]) {
		case "true", "1", "yes", "on":
			fmt.Fprintf(&b, "\t%s = true\n", key)
		case "false", "0", "no", "off":
			fmt.Fprintf(&b, "\t%s = false\n", key)
		}
	}
	if eol := strings.ToLower(s["core.eol"]); eol == "lf" || eol == "crlf" || eol == "native" {
		fmt.Fprintf(&b, "\teol = %s\n", eol)
	}
	if version == 1 {
		b.WriteString("[extensions]\n\tobjectformat = sha256\n")
	}
	b.WriteString("[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n")
	return b.String()
}

// userFile is a file in the user's configuration directory, or "".
func userFile(name string) string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, name)
	}
	if home := os.Getenv("HOME"); home != "" {
		return filepath.Join(home, ".config", name)
	}
	return ""
}

// excludesFile is where the user's own ignore rules lie, or "" (gitignore(5)).
func (s settings) excludesFile(root string) string {
	file := s["core.excludesfile"]
	if rest, ok := strings.CutPrefix(file, "~/"); ok {
		return filepath.Join(os.Getenv("HOME"), rest)
	}
	if file != "" && !filepath.IsAbs(file) {
		return filepath.Join(root, file)
	}
	if file != "" {
		return file
	}
	return userFile("git/ignore")
}
