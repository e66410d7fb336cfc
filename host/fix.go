package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aspis-dev/aspis/apply"
	"github.com/aspis-dev/aspis/host/receipt"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// Fixes are the fixes that findings carry inline, put together as one plan.
type Fixes struct {
	Findings []schemas.Finding
	Version  string // of aspis, which signs the plan

	Taken int      // fixes that are in the plan
	Left  []string // why others are not, a sentence each
}

// Make makes the plan on the workspace as it is. Fixes are taken in the order of
// the findings; one that does not fit there, or that overlaps with one taken
// before, is left out and told: what it was for will be found again.
func (f *Fixes) Make(ctx context.Context, s *Service, place Place, tree gitrepo.OID) (*schemas.EditPlan, map[string]uint32, error) {
	f.Taken, f.Left = 0, nil
	base, err := s.snapshot(ctx, tree)
	if err != nil {
		return nil, nil, err
	}
	plan := &schemas.EditPlan{
		ProposalID: "fixes-" + receipt.NewID(), Status: schemas.StatusComplete, Baseline: place.Baseline,
		Provider:         schemas.EditProvider{ID: "aspis-fix", Version: f.Version, CapabilityFamily: schemas.Edit, CapabilityVersion: "1", ConfigDigest: emptyConfig},
		ValidAsOf:        schemas.EditValidAsOf{Baseline: place.Baseline, Blobs: []schemas.BlobRef{}},
		TouchedResources: []schemas.Touched{},
		WorkspaceEdit:    &schemas.WorkspaceEdit{Baseline: place.Baseline, DocumentChanges: []schemas.DocChange{}},
	}
	held := storeBase{s, s.baseContent(place.Baseline, base)}
	for _, finding := range f.Findings {
		fix := finding.Diagnostic.Fix
		if fix == nil || fix.WorkspaceEdit == nil || len(fix.WorkspaceEdit.DocumentChanges) == 0 {
			continue
		}
		changes, ok := joined(plan.WorkspaceEdit.DocumentChanges, fix.WorkspaceEdit.DocumentChanges)
		if !ok {
			f.leave(finding, "it changes what another fix changes too; run aspis fix again")
			continue
		}
		next := *plan
		next.WorkspaceEdit = &schemas.WorkspaceEdit{Baseline: place.Baseline, DocumentChanges: changes}
		next.TouchedResources = touchedBy(changes)
		err := apply.Check(ctx, &next, held)
		var problem *apply.Problem
		if errors.As(err, &problem) {
			f.leave(finding, problem.Error())
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		plan.WorkspaceEdit, plan.TouchedResources = next.WorkspaceEdit, next.TouchedResources
		f.Taken++
	}
	if f.Taken == 0 {
		return nil, nil, ErrNoFix
	}
	return plan, nil, nil
}

// ErrNoFix says that no finding carries a fix that could be made.
var ErrNoFix = errors.New("no finding has a fix that fits the workspace as it is")

func (f *Fixes) leave(finding schemas.Finding, why string) {
	f.Left = append(f.Left, fmt.Sprintf("the fix of %s in %q was left out: %s", finding.Diagnostic.Code, finding.Diagnostic.Location.Path, why))
}

// joined adds changes to those that there are: text edits of one content to each
// other, and the same change to itself. Whether edits overlap is seen by whoever
// applies them.
func joined(have, more []schemas.DocChange) ([]schemas.DocChange, bool) {
	out := slices.Clone(have)
	for _, d := range more {
		i := slices.IndexFunc(out, func(o schemas.DocChange) bool { return o.Path == d.Path })
		switch {
		case i < 0:
			out = append(out, d)
		case same(out[i], d):
		case len(out[i].Edits) > 0 && len(d.Edits) > 0 && out[i].Kind == d.Kind && out[i].Precondition == d.Precondition:
			out[i].Edits = slices.Concat(out[i].Edits, d.Edits)
		default:
			return nil, false
		}
	}
	return out, true
}

func touchedBy(changes []schemas.DocChange) []schemas.Touched {
	out := make([]schemas.Touched, 0, len(changes))
	for _, d := range changes {
		out = append(out, schemas.Touched{Path: d.Path, Kind: d.Kind, To: d.To, Precondition: d.Precondition})
	}
	return out
}
