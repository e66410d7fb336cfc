package host

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/schemas"
)

// maxPolicyText bounds .asp/asp.json, in bytes.
const maxPolicyText = 1 << 20

// policyLosses finds what keeps a changeset from being judged by the policy in
// force: a policy of its own that weakens it, or a HEAD whose policy is not the
// one that this host was started with.
func (s *Service) policyLosses(ctx context.Context, cs schemas.ChangeSet, rev string, base *overlay.Snapshot) ([]schemas.Degradation, error) {
	var out []schemas.Degradation
	moved, err := s.policyMoved(ctx, rev)
	if err != nil {
		return nil, err
	}
	if moved != "" {
		out = append(out, schemas.Degradation{Source: "policy", Reason: schemas.ReasonStale, Detail: moved})
	}
	for _, ch := range cs.Changes {
		var weak []policy.Weakening
		switch {
		case ch.Path == policy.RepositoryFile && ch.Kind != schemas.ChangeDelete:
			text, err := s.policyText(ctx, ch, base)
			if err != nil {
				return nil, err
			}
			weak, err = s.Host.opt.Policy.Judge(text, false)
			if err != nil {
				return nil, err
			}
		case ch.Path == policy.RepositoryFile || ch.From == policy.RepositoryFile:
			if weak, err = s.Host.opt.Policy.Judge(nil, true); err != nil {
				return nil, err
			}
		}
		out = append(out, weakened(weak)...)
	}
	return out, nil
}

func (s *Service) policyText(ctx context.Context, ch schemas.Change, base *overlay.Snapshot) ([]byte, error) {
	ref := ch.After
	if ref == "" {
		ref = ch.Before // renamed to this name, as it is
	}
	r, _, err := s.opener(base)(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("read the change's policy: %w", err)
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, maxPolicyText+1))
	if err != nil {
		return nil, fmt.Errorf("read the change's policy: %w", err)
	}
	return text, nil // one over the limit is refused by the parser
}

// policyMoved tells whether the policy at HEAD is another than the one in force,
// which was read when the host started. The answer for a rev never changes.
func (s *Service) policyMoved(ctx context.Context, rev string) (string, error) {
	s.mu.Lock()
	known, ok := s.moved[rev]
	s.mu.Unlock()
	if ok {
		return known, nil
	}
	tree := gitrepo.OID(strings.TrimPrefix(rev, "git:tree:"))
	detail := ""
	if tree != s.PolicyTree {
		old, was, err := s.Repo.BlobAt(ctx, s.PolicyTree, policy.RepositoryFile, maxPolicyText)
		if err != nil {
			return "", err
		}
		now, is, err := s.Repo.BlobAt(ctx, tree, policy.RepositoryFile, maxPolicyText)
		if err != nil {
			return "", err
		}
		if was != is || !bytes.Equal(old, now) {
			detail = policy.RepositoryFile + " at HEAD is not the one that this host was started with; start it again"
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.moved == nil || len(s.moved) >= maxIssued {
		s.moved = map[string]string{}
	}
	s.moved[rev] = detail
	return detail, nil
}
