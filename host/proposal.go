package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"github.com/aspis-dev/aspis/schemas"
)

// proposal is a plan that this host has asked for, with what it saw of the
// provider that made it. It outlives the host: a harness may apply it through
// the next one.
type proposal struct {
	Plan     schemas.EditPlan          `json:"plan"`
	Evidence schemas.AuthorityEvidence `json:"evidence"`
	CallSite schemas.CallSite          `json:"callSite"`
	Scope    []string                  `json:"scope"`
	Tree     string                    `json:"tree"` // of the baseline
	At       time.Time                 `json:"at"`
	// Request is what was asked, for asking again.
	Request schemas.RequestEditPlanParams `json:"request"`
}

// drawer keeps small JSON files by key: the newest that fit, no more.
type drawer struct {
	dir   string
	count int   // files kept
	bytes int64 // of one file
}

// path names the file of a key; keys are hostile and never become names.
func (d drawer) path(key ...string) string {
	h := sha256.New()
	for _, k := range key {
		fmt.Fprintf(h, "%d:%s", len(k), k)
	}
	return filepath.Join(d.dir, hex.EncodeToString(h.Sum(nil))+".json")
}

// put writes a value whole or not at all.
func (d drawer) put(v any, key ...string) error {
	b, err := schemas.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode what is to be kept: %w", err)
	}
	if int64(len(b)) > d.bytes {
		return fmt.Errorf("%d bytes are over the limit of %d", len(b), d.bytes)
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	if err := d.shrink(); err != nil {
		return err
	}
	return renameio.WriteFile(d.path(key...), b, 0o600)
}

// get reads a value; false when there is none.
func (d drawer) get(v any, key ...string) (bool, error) {
	at := d.path(key...)
	f, err := os.Open(at)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, d.bytes+1))
	if err != nil || int64(len(b)) > d.bytes {
		return false, fmt.Errorf("read %s: %d bytes: %w", at, len(b), err)
	}
	if err := schemas.Decode(b, v, schemas.Limits{MaxBytes: len(b) + 1}); err != nil {
		return false, fmt.Errorf("read %s: %w", at, err)
	}
	return true, nil
}

// shrink makes room for one more, the oldest first.
func (d drawer) shrink() error {
	entries, err := os.ReadDir(d.dir)
	if err != nil || len(entries) < d.count {
		return err
	}
	type aged struct {
		name string
		at   time.Time
	}
	var all []aged
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		all = append(all, aged{e.Name(), info.ModTime()})
	}
	slices.SortFunc(all, func(a, b aged) int { return a.at.Compare(b.at) })
	for _, a := range all[:max(len(all)-d.count+1, 0)] {
		if err := os.Remove(filepath.Join(d.dir, a.name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// maxKept bounds one proposal or result, in bytes: a message of the wire and
// what is added to it.
const maxKept = 20 << 20

func (h *Host) proposals() drawer {
	return drawer{dir: filepath.Join(h.opt.StateDir, "proposals"), count: 256, bytes: maxKept}
}

func (h *Host) outcomes() drawer {
	return drawer{dir: filepath.Join(h.opt.StateDir, "applied"), count: 1000, bytes: maxKept}
}

// keepProposal remembers a plan that was obtained for a workspace.
func (h *Host) keepProposal(place Place, p proposal) error {
	if err := h.proposals().put(p, place.Root, p.Plan.ProposalID); err != nil {
		return fmt.Errorf("keep the proposal: %w", err)
	}
	return nil
}

// proposalOf finds a plan that was obtained for a workspace.
func (h *Host) proposalOf(_ context.Context, place Place, id string) (*proposal, error) {
	var p proposal
	ok, err := h.proposals().get(&p, place.Root, id)
	if err != nil {
		return nil, fmt.Errorf("look for the proposal: %w", err)
	}
	if !ok || p.Plan.ProposalID != id {
		return nil, nil
	}
	return &p, nil
}
