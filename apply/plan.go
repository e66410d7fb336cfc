package apply

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/aspis-dev/aspis/schemas"
)

// Problem is why a plan cannot be taken. Stale is true when the workspace, not
// the plan's form, is the reason.
type Problem struct {
	Path   string
	Detail string
	Stale  bool
	Blob   schemas.BlobRef // that nobody has put, where this is the reason
}

func (p *Problem) Error() string {
	if p.Path == "" {
		return p.Detail
	}
	return fmt.Sprintf("%q: %s", p.Path, p.Detail)
}

// Base is what a plan is checked against.
type Base interface {
	// Blob names the content of a path at the baseline; false when there is none.
	Blob(ctx context.Context, path string) (schemas.BlobRef, bool, error)
	// Open gives the content of a blob, and false when nobody has put it.
	Open(ctx context.Context, ref schemas.BlobRef) (io.ReadCloser, bool, error)
}

// maxText bounds a file that text edits are applied to, in bytes.
const maxText = 64 << 20

// Check compares a complete plan of the right shape with a baseline: every path
// may be written, touchedResources and the edit say the same, preconditions
// hold, and text edits fit. A *Problem says what does not; other errors are the
// host's own.
func Check(ctx context.Context, plan *schemas.EditPlan, base Base) error {
	if plan.WorkspaceEdit == nil {
		return nil
	}
	touched := map[string]schemas.Touched{}
	for _, t := range plan.TouchedResources {
		if _, twice := touched[t.Path]; twice {
			return &Problem{Path: t.Path, Detail: "touchedResources names it twice"}
		}
		touched[t.Path] = t
	}
	seen := map[string]string{}
	for _, d := range plan.WorkspaceEdit.DocumentChanges {
		for _, p := range []string{d.Path, d.To} {
			if p == "" {
				continue
			}
			if why := Refusal(p); why != "" {
				return &Problem{Path: p, Detail: why}
			}
			// Names that fold to one would overwrite each other on some machines.
			key := strings.ToLower(p)
			if other, dup := seen[key]; dup && (p != d.To || other != d.Path) {
				return &Problem{Path: p, Detail: fmt.Sprintf("it is changed together with %q", other)}
			}
			seen[key] = p
		}
		t, ok := touched[d.Path]
		if !ok {
			return &Problem{Path: d.Path, Detail: "touchedResources does not name it"}
		}
		if t.Kind != d.Kind || t.To != d.To || t.Precondition != d.Precondition {
			return &Problem{Path: d.Path, Detail: "touchedResources says something else of it than the edit"}
		}
		delete(touched, d.Path)
		if err := checkChange(ctx, d, base); err != nil {
			return err
		}
	}
	for p := range touched {
		return &Problem{Path: p, Detail: "touchedResources names it, but the edit does not change it"}
	}
	return nil
}

func checkChange(ctx context.Context, d schemas.DocChange, base Base) error {
	now, there, err := base.Blob(ctx, d.Path)
	switch {
	case err != nil:
		return fmt.Errorf("look up %q: %w", d.Path, err)
	case d.Precondition.ExpectedAbsence && there:
		return &Problem{Path: d.Path, Detail: "it is expected to be absent, but the baseline has it", Stale: true}
	case !d.Precondition.ExpectedAbsence && !there:
		return &Problem{Path: d.Path, Detail: "the baseline does not have it", Stale: true}
	case there && now != d.Precondition.ExpectedDigest:
		return &Problem{Path: d.Path, Detail: fmt.Sprintf("it is %s, not %s", now, d.Precondition.ExpectedDigest), Stale: true}
	}
	if d.To != "" {
		if _, taken, err := base.Blob(ctx, d.To); err != nil {
			return fmt.Errorf("look up %q: %w", d.To, err)
		} else if taken {
			return &Problem{Path: d.To, Detail: "the baseline has it already", Stale: true}
		}
	}
	if d.After != "" {
		r, ok, err := base.Open(ctx, d.After)
		if err != nil {
			return fmt.Errorf("look up %s: %w", d.After, err)
		}
		if !ok {
			return &Problem{Path: d.Path, Blob: d.After, Detail: fmt.Sprintf("the blob %s was never put", d.After)}
		}
		return r.Close()
	}
	if len(d.Edits) == 0 {
		return nil
	}
	return checkEdits(ctx, d, base)
}

func checkEdits(ctx context.Context, d schemas.DocChange, base Base) (err error) {
	r, ok, err := base.Open(ctx, d.Precondition.ExpectedDigest)
	if err != nil {
		return fmt.Errorf("read %q: %w", d.Path, err)
	}
	if !ok {
		return &Problem{Path: d.Path, Detail: "its content cannot be had", Stale: true}
	}
	defer r.Close()
	content, err := io.ReadAll(io.LimitReader(r, maxText+1))
	if err != nil {
		return fmt.Errorf("read %q: %w", d.Path, err)
	}
	if len(content) > maxText {
		return &Problem{Path: d.Path, Detail: fmt.Sprintf("it has more than %d bytes; replace it as a whole", maxText)}
	}
	if _, err := TextEdits(content, d.Edits); err != nil {
		return &Problem{Path: d.Path, Detail: err.Error()}
	}
	return nil
}
