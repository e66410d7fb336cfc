package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/host/outer"
	"github.com/aspis-dev/aspis/host/supervise"
	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// Service is a Host bound to a repository, as the outer seam needs it: it
// issues baselines for the workspace as it lies, and turns a harness's
// changeset into trees.
type Service struct {
	Host  *Host
	Repo  *gitrepo.Repo
	Store *overlay.Store
	Space overlay.Mounter // nil where nothing can be mounted
	Root  string
	// PolicyTree is the tree that the repository's policy was read from.
	PolicyTree gitrepo.OID

	mu     sync.Mutex
	follow *gitrepo.Follower
	issued map[string]gitrepo.OID // by baseline: the tree it stands for
	moved  map[string]string      // by rev: how its policy differs from the one in force
	base   *overlay.Snapshot      // of the last baseline, kept warm
}

var _ outer.Host = (*Service)(nil)

// maxIssued bounds the baselines that are remembered.
const maxIssued = 256

func baselineKey(b schemas.Baseline) string { return b.Rev + "\x00" + b.Dirty }

// follower looks at the workspace, or remembers how it looked.
func (s *Service) follower() *gitrepo.Follower {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.follow == nil {
		s.follow = s.Repo.Follow()
	}
	return s.follow
}

// current looks at the workspace and issues its baseline. The rev names HEAD's
// tree, dirty the rest; the tree is that of both together.
func (s *Service) current(ctx context.Context) (Place, gitrepo.OID, error) {
	b, tree, err := s.follower().Latest(ctx)
	if err != nil {
		return Place{}, "", err
	}
	s.remember(b, tree)
	now := time.Now().UTC()
	b.StampedAt = &now
	root := s.Root
	if root == "" {
		root = s.Repo.CommonDir()
	}
	return Place{Root: root, Baseline: b}, tree, nil
}

// remember notes a baseline that this host has issued.
func (s *Service) remember(b schemas.Baseline, tree gitrepo.OID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.issued == nil || len(s.issued) >= maxIssued {
		s.issued = map[string]gitrepo.OID{}
	}
	s.issued[baselineKey(b)] = tree
}

// Remember takes a baseline that an earlier host has issued, with its tree.
func (s *Service) Remember(b schemas.Baseline, tree gitrepo.OID) { s.remember(b, tree) }

// treeOf resolves a baseline that this host has issued.
func (s *Service) treeOf(b schemas.Baseline) (gitrepo.OID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tree, ok := s.issued[baselineKey(b)]
	return tree, ok
}

// snapshot gives the snapshot of a tree, the last one from memory.
func (s *Service) snapshot(ctx context.Context, tree gitrepo.OID) (*overlay.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.base != nil && s.base.Tree() == tree {
		return s.base, nil
	}
	base, err := s.Store.Baseline(ctx, s.Repo, tree)
	if err != nil {
		return nil, err
	}
	// The old one may still be in use by requests under way; it is let go when
	// the process ends, and costs one descriptor until then.
	s.base = base
	return base, nil
}

// Close lets snapshots be collected.
func (s *Service) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	if s.follow != nil {
		errs = append(errs, s.follow.Close())
	}
	if s.base != nil {
		errs = append(errs, s.base.Close())
	}
	return errors.Join(errs...)
}

// Place is the workspace as it is, with a baseline for requests.
func (s *Service) Place(ctx context.Context) (Place, error) {
	place, _, err := s.current(ctx)
	return place, err
}

// Status answers host/status.
func (s *Service) Status(ctx context.Context) (*schemas.HostStatus, error) {
	place, _, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	return s.Host.Status(ctx, place)
}

// Capabilities answers host/capabilities.
func (s *Service) Capabilities(ctx context.Context) (*schemas.HostCapabilities, error) {
	place, _, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	return s.Host.Capabilities(ctx, place)
}

// AuthorityStatus answers host/authority/status.
func (s *Service) AuthorityStatus(ctx context.Context) (*schemas.AuthorityStatus, error) {
	place, _, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	return s.Host.AuthorityStatus(ctx, place)
}

// EvaluateChangeset answers host/evaluateChangeset. A changeset on another
// baseline than the workspace's, or one that does not fit it, still gets a
// verdict where the wire allows one: stale, and never allow.
func (s *Service) EvaluateChangeset(ctx context.Context, p *schemas.EvaluateParams, raw jsontext.Value) (*schemas.Verdict, error) {
	digest, err := schemas.DigestRaw(raw)
	if err != nil {
		return nil, inputError("the params cannot be digested", err)
	}
	place, tree, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	ev := Evaluation{CallSite: p.CallSite, ChangeSet: p.ChangeSet, Comparison: p.Comparison, BasePolicyDigest: p.BasePolicyDigest, RequestDigest: digest}
	if p.TimeoutMs != nil {
		ev.Timeout = time.Duration(*p.TimeoutMs) * time.Millisecond
	}
	if !p.ChangeSet.Baseline.Same(place.Baseline) {
		detail := "the changeset is on the baseline " + p.ChangeSet.Baseline.Rev + "; the workspace is at " + place.Baseline.Rev
		if _, known := s.treeOf(p.ChangeSet.Baseline); !known {
			detail += ", and this host never issued that baseline"
		}
		ev.HostLosses = append(ev.HostLosses, schemas.Degradation{Source: "workspace", Reason: schemas.ReasonStaleBaseline, Detail: detail})
		ev.Workspace = nowhere{detail}
		return s.Host.Evaluate(ctx, ev)
	}
	w, err := s.hypothetical(ctx, p.ChangeSet, tree)
	if err != nil {
		return nil, err
	}
	policyLosses, err := s.policyLosses(ctx, p.ChangeSet, place.Baseline.Rev, w.base)
	if err != nil {
		return nil, err
	}
	ev.HostLosses = append(ev.HostLosses, policyLosses...)
	// What is remembered of the workspace is good enough for a hint. A gate has
	// it looked at, while the providers work, unless that was done just now.
	looked := func() error { return nil }
	if p.CallSite != schemas.Interactive {
		looked = s.confirm(ctx, place.Baseline)
	}
	w.moved = func(ctx context.Context) (string, error) {
		err := looked()
		if err == nil {
			// And after that look nothing was reported any more.
			var now schemas.Baseline
			if now, _, err = s.follower().Latest(ctx); err == nil && !now.Same(place.Baseline) {
				err = errMoved
			}
		}
		if errors.Is(err, errMoved) {
			return errMoved.Error(), nil
		}
		return "", err
	}
	ev.Workspace = w
	v, err := s.Host.Evaluate(ctx, ev)
	// Also where the evaluation ended without asking.
	_ = looked()
	return v, errors.Join(err, w.close())
}

var errMoved = errors.New("the workspace moved while the change was judged; ask host/status and send it again")

// gateLook is for how long after a look at the workspace a gate believes the
// kernel's reports, which tell of every change but one through a shared memory
// mapping or through a hard link from outside. Whatever such a change does, the
// verdict is on the trees that it names, and an apply compares each file anew.
const gateLook = 10 * time.Second

// confirm begins to look at the workspace. What it gives waits for the answer:
// nil where the workspace is what was taken for it.
func (s *Service) confirm(ctx context.Context, taken schemas.Baseline) func() error {
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		var now schemas.Baseline
		if now, _, err = s.follower().Within(ctx, gateLook); err == nil && !now.Same(taken) {
			err = errMoved
		}
	}()
	return func() error {
		<-done
		return err
	}
}

func inputError(what string, err error) *schemas.Error {
	return &schemas.Error{Code: schemas.CodeInvalidChangeset, Message: what,
		Data: &schemas.ErrorData{FailClass: schemas.FailInput, Detail: err.Error()}}
}

// nowhere is the workspace of a change that fits no baseline.
type nowhere struct{ why string }

func (n nowhere) Content(context.Context) (supervise.Content, error) { return nil, errors.New(n.why) }
func (n nowhere) Mounts(context.Context) (string, string, func() error, error) {
	return "", "", nil, errors.New(n.why)
}
func (n nowhere) Moved(context.Context) (string, error) { return "", nil }

// QueryInspect answers host/queryInspect.
func (s *Service) QueryInspect(ctx context.Context, p *schemas.QueryInspectParams, raw jsontext.Value) (*schemas.QueryInspectResult, error) {
	req, err := schemas.DecodeInspectRequest(p.Request, schemas.Limits{})
	if err != nil {
		return nil, inputError("the inspect request is not valid", err)
	}
	place, tree, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	if p.Baseline != nil && !p.Baseline.Same(place.Baseline) {
		yes := true
		return nil, &schemas.Error{Code: schemas.CodeStaleBaseline, Message: "the request is on another baseline",
			Data: &schemas.ErrorData{FailClass: schemas.FailHealth, Retryable: &yes, Detail: "the workspace is at " + place.Baseline.Rev}}
	}
	digest, err := schemas.DigestRaw(raw)
	if err != nil {
		return nil, inputError("the params cannot be digested", err)
	}
	base, err := s.snapshot(ctx, tree)
	if err != nil {
		return nil, err
	}
	if p.TimeoutMs != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(*p.TimeoutMs)*time.Millisecond, context.DeadlineExceeded)
		defer cancel()
	}
	return s.Host.QueryInspect(ctx, p.CallSite, req, place, s.baseContent(place.Baseline, base), digest)
}

// RequestEditPlan answers host/requestEditPlan.
func (s *Service) RequestEditPlan(ctx context.Context, p *schemas.RequestEditPlanParams, raw jsontext.Value) (*schemas.RequestEditPlanResult, error) {
	place, tree, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	digest, err := schemas.DigestRaw(raw)
	if err != nil {
		return nil, inputError("the params cannot be digested", err)
	}
	base, err := s.snapshot(ctx, tree)
	if err != nil {
		return nil, err
	}
	return s.Host.RequestEditPlan(ctx, p, place, tree, s.baseContent(place.Baseline, base), s.PutBlob, digest)
}

func (s *Service) baseContent(b schemas.Baseline, base *overlay.Snapshot) *content {
	return newContent(schemas.ChangeSet{Baseline: b}, base, s.opener(base))
}

// maxBlob bounds one blob that is handed over, in bytes.
const maxBlob = 64 << 20

// PutBlob stores bytes that a harness or an edit provider hands over.
func (s *Service) PutBlob(ctx context.Context, b []byte) (schemas.BlobRef, error) {
	ref, err := s.Store.PutBlob(ctx, bytes.NewReader(b), maxBlob)
	if err != nil {
		return "", fmt.Errorf("store the blob: %w", err)
	}
	return ref, nil
}
