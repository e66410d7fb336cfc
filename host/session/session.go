// Package session keeps isolated sessions: a command that works on a whole
// project inside a container, over a work area that holds back what it writes,
// until somebody looks at it and has it applied.
//
// It knows work areas, sandboxes and repositories. It knows nothing of providers
// and policy: what a session made reaches the project by an edit plan, like every
// other edit.
package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/egress"
	"github.com/aspis-dev/aspis/schemas"
)

// Session is what is noted of one. It lasts until it is discarded.
type Session struct {
	ID       string           `json:"id"` // of the work area
	Name     string           `json:"name"`
	Dir      string           `json:"dir"` // the project
	Baseline schemas.Baseline `json:"baseline"`
	Tree     string           `json:"tree"` // of the baseline
	Created  time.Time        `json:"created"`
	Runs     []Run            `json:"runs"`
	Applied  []string         `json:"applied,omitzero"` // receipts of applies of it
}

// Run is one command of a session.
type Run struct {
	Command []string  `json:"command"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"` // zero where the host died
	Code    int       `json:"code"`
	Mode    string    `json:"mode"`
	Walls   []Wall    `json:"walls,omitzero"` // that do not stand
	Shown   []string  `json:"shown,omitzero"` // paths that were made readable
	MaxRSS  int64     `json:"maxRssBytes,omitzero"`
	CPUMs   int64     `json:"cpuMs,omitzero"`
	Network string    `json:"network"` // none, or the destinations that were let through
	// Attempts to reach something, where there was a way to anything.
	Attempts *egress.Record `json:"attempts,omitzero"`
	TimedOut bool           `json:"timedOut,omitzero"`
	OOM      bool           `json:"oom,omitzero"`
}

// Wall is one that does not stand, and why.
type Wall struct {
	Name string `json:"name"`
	Seen string `json:"seen"`
}

// Book is where sessions are noted.
type Book struct {
	Dir   string // below the state directory
	Store *overlay.Store
}

// UnknownError says that no session has a name.
type UnknownError struct{ Name string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("there is no session %q; aspis session ls lists them", e.Name)
}

// ErrExists says that a name is taken.
var ErrExists = errors.New("a session of this name is there already")

const maxNote = 4 << 20 // bytes

func (b *Book) path(id string) string { return filepath.Join(b.Dir, id+".json") }

// Save writes a session's note, whole or not at all.
func (b *Book) Save(s *Session) error {
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return fmt.Errorf("note the session: %w", err)
	}
	text, err := schemas.Marshal(s)
	if err != nil {
		return fmt.Errorf("note the session: %w", err)
	}
	if err := renameio.WriteFile(b.path(s.ID), text, 0o600); err != nil {
		return fmt.Errorf("note the session: %w", err)
	}
	return nil
}

// List gives the sessions, the oldest first; of one project only, unless dir is "".
func (b *Book) List(dir string) ([]*Session, error) {
	entries, err := os.ReadDir(b.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the sessions: %w", err)
	}
	var out []*Session
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(b.Dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // discarded meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("read a session: %w", err)
		}
		var s Session
		if err := schemas.Decode(text, &s, schemas.Limits{MaxBytes: maxNote}); err != nil {
			return nil, fmt.Errorf("read the session %s: %w", e.Name(), err)
		}
		if dir == "" || s.Dir == dir {
			out = append(out, &s)
		}
	}
	slices.SortFunc(out, func(x, y *Session) int { return x.Created.Compare(y.Created) })
	return out, nil
}

// Find gives the session of a name or of an id's beginning; "" is for the newest
// of the project.
func (b *Book) Find(dir, name string) (*Session, error) {
	all, err := b.List("")
	if err != nil {
		return nil, err
	}
	var found *Session
	for _, s := range all {
		switch {
		case name == "" && s.Dir == dir, s.Name == name && s.Dir == dir, len(name) >= 4 && strings.HasPrefix(s.ID, name):
			found = s // the newest comes last
		}
	}
	if found == nil {
		if name == "" {
			name = "of this project"
		}
		return nil, &UnknownError{Name: name}
	}
	return found, nil
}

// Remove drops a session and all that was done in it.
func (b *Book) Remove(ctx context.Context, s *Session) error {
	area, err := b.Store.OpenWorkArea(s.ID)
	if err == nil {
		err = area.Drop(ctx)
	}
	if err != nil && !errors.Is(err, overlay.ErrNoWorkArea) {
		return err
	}
	return os.Remove(b.path(s.ID))
}

// New makes a session over a repository's worktree as it stands.
func (b *Book) New(ctx context.Context, repo *gitrepo.Repo, name string) (*Session, error) {
	src, err := overlay.SourceOf(repo)
	if err != nil {
		return nil, err
	}
	if name != "" {
		if _, err := b.Find(repo.Root(), name); err == nil {
			return nil, fmt.Errorf("%q: %w; choose another, or go on in it with --session %s", name, ErrExists, name)
		}
	}
	baseline, tree, err := repo.Current(ctx)
	if err != nil {
		return nil, err
	}
	area, err := b.Store.CreateWorkArea(ctx, src, overlay.WorkOptions{})
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = area.ID()[:6]
	}
	s := &Session{ID: area.ID(), Name: name, Dir: repo.Root(), Baseline: baseline, Tree: string(tree), Created: time.Now().UTC(), Runs: []Run{}}
	// The project may have moved between the two looks: then neither is the other's.
	after, again, err := repo.Current(ctx)
	if err == nil && (again != tree || !after.Same(baseline)) {
		err = errors.New("the project changed while the session was made; try again")
	}
	if err == nil {
		err = b.Save(s)
	}
	if err != nil {
		return nil, errors.Join(err, area.Drop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// Walls notes which walls do not stand.
func wallsOf(e sandbox.Evidence) (mode string, missing []Wall) {
	m, fallen := e.Mode()
	for _, w := range fallen {
		missing = append(missing, Wall{Name: string(w.Name), Seen: w.Seen})
	}
	return m.String(), missing
}
