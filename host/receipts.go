package host

import (
	"context"
	"time"

	"github.com/aspis-dev/aspis/host/receipt"
	"github.com/aspis-dev/aspis/schemas"
)

// outline is what every receipt is made of.
type outline struct {
	kind      schemas.ReceiptKind
	family    schemas.CapabilityFamily
	site      schemas.CallSite
	request   string // digest
	policy    string // digest
	baseline  schemas.Baseline
	coverage  schemas.HostCoverage
	assurance schemas.Assurance
	started   time.Time
}

// draft fills in a receipt; what it says of providers is for the caller to add.
func (h *Host) draft(o outline) schemas.Receipt {
	ended := h.now()
	return schemas.Receipt{
		ReceiptID: receipt.NewID(), IssuedAt: ended, Kind: o.kind, Host: h.name(), CapabilityFamily: o.family,
		RequestDigest: o.request, ProviderIDs: []string{}, ProviderProvenance: []schemas.ProviderProvenance{},
		PolicyDigest: o.policy, Baseline: o.baseline, ValidAsOf: schemas.ValidAsOf{Rev: o.baseline.Rev}, Coverage: o.coverage,
		AuthorityEvidence: []schemas.AuthorityEvidence{}, Assurance: o.assurance,
		Timing:   schemas.Timing{StartedAt: o.started, EndedAt: ended, ElapsedMs: milliseconds(ended.Sub(o.started))},
		Failures: o.coverage.Degraded, PrivateOnly: true, Experimental: true, CallSite: o.site,
	}
}

// keep writes a receipt. An answer whose receipt cannot be kept is not given,
// and a caller that has gone does not keep it from being written.
func (h *Host) keep(ctx context.Context, r schemas.Receipt) error {
	return h.receipts.Append(context.WithoutCancel(ctx), receipt.Record{Receipt: r}, nil)
}

// emptyCoverage is that of an answer for which nothing was required.
func emptyCoverage(degraded ...schemas.Degradation) schemas.HostCoverage {
	if degraded == nil {
		degraded = []schemas.Degradation{}
	}
	return schemas.HostCoverage{Required: []string{}, Enrolled: []string{}, Ran: []string{}, Degraded: degraded, Exhaustive: len(degraded) == 0}
}

// nothingDone is the assurance of an answer that judged and wrote nothing.
func nothingDone(detail string) schemas.Assurance {
	return schemas.Assurance{Mode: schemas.Advisory, TransactionGuarantee: schemas.GuaranteeNone, Detail: detail}
}
