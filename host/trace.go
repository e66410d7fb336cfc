package host

import (
	"fmt"
	"strings"

	"github.com/aspis-dev/aspis/host/supervise"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/schemas"
)

// ProviderTrace is the host's own account of one provider in one evaluation. It
// is kept as evidence beside the receipt, in full, and is not part of ASP.
type ProviderTrace struct {
	ID        string                 `json:"id"`
	Version   string                 `json:"version"`
	Digest    string                 `json:"digest"`
	State     schemas.LifecycleState `json:"state"`
	Mode      schemas.AssuranceMode  `json:"mode"`
	Started   bool                   `json:"started"`
	Handshake bool                   `json:"handshake"`
	Warm      bool                   `json:"warm,omitzero"`
	Failure   string                 `json:"failure,omitzero"`
	Reason    string                 `json:"reason,omitzero"`
	Missing   string                 `json:"missing,omitzero"`
	NoSandbox string                 `json:"noSandbox,omitzero"`
	Grant     *schemas.Permissions   `json:"grant,omitzero"`
	Walls     *sandbox.Evidence      `json:"walls,omitzero"`
	Callbacks int64                  `json:"callbacks"`
	Bytes     int64                  `json:"bytesServed"`
	Blobs     int                    `json:"blobsServed"`
	Reissued  bool                   `json:"reissued,omitzero"`
	CheckMs   float64                `json:"checkMs"`
	ElapsedMs float64                `json:"elapsedMs"`
}

// EvidenceRecord is what a receipt's id leads to.
type EvidenceRecord struct {
	ReceiptID string          `json:"receiptId"`
	Providers []ProviderTrace `json:"providers"`
}

// started notes what the kernel showed before the provider ran.
func (t *ProviderTrace) started(s *supervise.Session) {
	if s == nil {
		return
	}
	ev, ok := s.Evidence()
	if !ok {
		return
	}
	t.Started = true
	t.Walls = &ev
	mode, missing := ev.Mode()
	t.Mode = schemas.AssuranceMode(mode.String())
	t.Missing = missingWalls(missing)
	if s.Info() != nil {
		t.Handshake = true
		grant := s.Grant()
		t.Grant = &grant
	}
}

func (t *ProviderTrace) took(r supervise.CheckResult) {
	t.Callbacks, t.Bytes, t.Blobs, t.Reissued = r.Callbacks, r.Bytes, len(r.Served), r.Reissued
	t.CheckMs = milliseconds(r.Elapsed)
}

// missingWalls names the first few walls that do not stand, with their remedy.
func missingWalls(walls []sandbox.Wall) string {
	const shown = 3
	var parts []string
	for i, w := range walls {
		if i == shown {
			parts = append(parts, fmt.Sprintf("and %d more (see the evidence)", len(walls)-shown))
			break
		}
		parts = append(parts, fmt.Sprintf("%s is missing: %s", w.Name, w.Seen))
	}
	return strings.Join(parts, "; ")
}

// summary says in one line what assurance.detail tells of this provider.
func (t *ProviderTrace) summary() string {
	switch {
	case !t.Started:
		return t.ID + " was not started"
	case t.Missing != "":
		return t.ID + ": " + t.Missing
	default:
		return fmt.Sprintf("%s: %d walls seen standing before it ran", t.ID, len(t.Walls.Walls))
	}
}
