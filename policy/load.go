package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/schemas"
)

// Files that a repository may hold.
const (
	RepositoryFile = ".asp/asp.json"
	LocalFile      = ".asp/local.json"
)

// Sources says where the layers come from. Empty paths and nil bytes mean that
// a layer is not there.
type Sources struct {
	FloorPath     string                  // /etc/aspis/floor.json; used only where it exists
	SystemPath    string                  // /etc/aspis/config.json; used only where it exists
	UserPath      string                  // $XDG_CONFIG_HOME/aspis/config.json; wins over the system's where it exists
	ConfigPath    string                  // named by the caller: it must exist, and replaces both
	Shipped       func() (Shipped, error) // the provider for the built-in policy
	Repository    []byte                  // .asp/asp.json at the baseline
	Candidate     []byte                  // the same in the candidate; equal bytes mean no change
	CandidateGone bool                    // the candidate removes it
	Local         []byte                  // .asp/local.json in the worktree
}

// Load reads and composes every layer.
func Load(s Sources) (*Effective, error) {
	var l Layers
	raw, err := readTrusted(s.FloorPath, true)
	if err != nil {
		return nil, err
	}
	if raw != nil {
		if l.Floor, err = ParseFloor(s.FloorPath, raw); err != nil {
			return nil, err
		}
	}
	if l.Config, l.ConfigName, err = loadConfig(s); err != nil {
		return nil, err
	}
	l.Local = localOverride(s.Local)
	trusted, err := Compose(l)
	if err != nil {
		return nil, err
	}
	if s.Repository != nil {
		if l.Repository, err = ParseRepository(RepositoryFile+" at the baseline", s.Repository); err != nil {
			return nil, err
		}
	}
	l.Pending, l.Candidate = pending(s, l.Repository, trusted)
	return Compose(l)
}

// pending compares the candidate's policy with the baseline's. One that cannot
// be read is a weakening: nobody could say what it would require.
func pending(s Sources, base *schemas.RepositoryPolicy, trusted *Effective) ([]Weakening, bool) {
	if s.CandidateGone {
		changes := Compare(base, nil, trusted)
		return Weakenings(changes), len(changes) > 0
	}
	if s.Candidate == nil || bytes.Equal(s.Candidate, s.Repository) {
		return nil, false
	}
	cand, err := ParseRepository(RepositoryFile+" in the candidate", s.Candidate)
	if err != nil {
		return []Weakening{{Kind: "policy-malformed", Detail: err.Error()}}, true
	}
	changes := Compare(base, cand, trusted)
	return Weakenings(changes), len(changes) > 0
}

func loadConfig(s Sources) (*Config, string, error) {
	for _, c := range []struct {
		path     string
		optional bool
	}{{s.ConfigPath, false}, {s.UserPath, true}, {s.SystemPath, true}} {
		if c.path == "" {
			continue
		}
		raw, err := readTrusted(c.path, c.optional)
		if err != nil {
			return nil, "", err
		}
		if raw == nil {
			continue
		}
		cfg, err := ParseConfig(c.path, raw)
		return cfg, c.path, err
	}
	if s.Shipped == nil {
		return nil, "", errors.New("there is no trusted configuration and no provider for a built-in one")
	}
	shipped, err := s.Shipped()
	if err != nil {
		return nil, "", fmt.Errorf("the built-in policy needs the provider that comes with aspis: %w", err)
	}
	cfg, err := Builtin(shipped)
	return cfg, "built-in policy", err
}

// readTrusted reads a file that trust rests on. It must be a regular file that
// belongs to root or to the caller, and nobody else may be able to change it or
// the directory it lies in.
func readTrusted(path string, optional bool) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if optional && errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read trusted configuration: %w", err)
	}
	defer f.Close()
	if err := onlyTrusted(int(f.Fd()), path, unix.S_IFREG); err != nil {
		return nil, err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("read trusted configuration: %w", err)
	}
	defer dir.Close()
	if err := onlyTrusted(int(dir.Fd()), filepath.Dir(path), unix.S_IFDIR); err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read trusted configuration %s: %w", path, err)
	}
	if len(raw) > maxFile {
		return nil, &Error{File: path, Detail: fmt.Sprintf("is over %d bytes", maxFile)}
	}
	return raw, nil
}

func onlyTrusted(fd int, path string, kind uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at trusted configuration %s: %w", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != kind:
		return &Error{File: path, Detail: "is not a regular file"}
	case st.Uid != 0 && int(st.Uid) != os.Geteuid() && st.Uid != overflowID:
		return &Error{File: path, Detail: fmt.Sprintf("belongs to user %d; trusted configuration must belong to root or to you", st.Uid)}
	case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0:
		return &Error{File: path, Detail: fmt.Sprintf("can be written by others (mode %04o); use chmod go-w", st.Mode&0o7777)}
	}
	return nil
}

// overflowID is what the ids outside a user namespace are seen as, root's among
// them (user_namespaces(7)).
const overflowID = 65534

// localOverride reports what .asp/local.json would like. It has no authority.
func localOverride(raw []byte) *schemas.LocalOverride {
	if raw == nil {
		return nil
	}
	o := &schemas.LocalOverride{Present: true, Path: jsontext.Value(`"` + LocalFile + `"`), AuthorityEffect: "none"}
	if pointer, found := memberNamed(raw, weakeningNames); found {
		o.Detail = "refused: it has the member " + pointer + ", but a local file cannot weaken a gate, grant authority, certify a provider or change what a missing host does"
	} else if !jsontext.Value(raw).IsValid() {
		o.Detail = "ignored: it is not JSON"
	}
	return o
}

// weakeningNames are the members by which a local file would reach for authority.
var weakeningNames = append([]string{"requirements", "gates", "grants", "grant", "authority", "providers", "policy", "missingHost", "assurance",
	"certification", "certified", "trusted", "requiredRequirements", "optionalRequirements"}, launchNames...)

// Kind is which of the three policy files a text is.
type Kind int

const (
	KindRepository Kind = iota
	KindConfig
	KindFloor
)

// KindOf tells the kind from the version that the text names; a text that names
// none of ours is taken for a repository's policy.
func KindOf(raw []byte) Kind {
	var head struct {
		Version jsontext.Value `json:"version,omitzero"`
	}
	if json.Unmarshal(raw, &head) != nil {
		return KindRepository
	}
	switch string(head.Version) {
	case `"` + ConfigVersion + `"`:
		return KindConfig
	case `"` + FloorVersion + `"`:
		return KindFloor
	}
	return KindRepository
}
