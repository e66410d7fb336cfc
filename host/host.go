package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/aspis-dev/aspis/host/health"
	"github.com/aspis-dev/aspis/host/metrics"
	"github.com/aspis-dev/aspis/host/receipt"
	"github.com/aspis-dev/aspis/host/supervise"
	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/schemas"
)

// Options are what a Host is made of.
type Options struct {
	StateDir string // receipts, health and verified artifacts live below it
	Version  string
	Policy   *policy.Effective
	// Runtime gives the runtime of a name ("container" or "process"), or why
	// this machine has none.
	Runtime func(name string) (sandbox.Runtime, string)
	// Protect are host paths that no provider may reach: the worktree, the state
	// directory, the caller's home.
	Protect []string
	// Warm keeps callback-only providers running between evaluations.
	Warm          bool
	SessionLimits supervise.Limits
	// Without leaves walls out of the sandboxes that are built, for tests.
	Without []sandbox.WallName
	Log     *slog.Logger
	Now     func() time.Time
	// Observe is told of every run of a provider: latency in milliseconds and
	// the reason of a failure, "" for none. Nil for nobody.
	Observe func(provider, callSite string, ms float64, failure string)
}

// Host answers for one workspace. It is safe for use from several goroutines.
type Host struct {
	opt       Options
	log       *slog.Logger
	now       func() time.Time
	receipts  *receipt.Log
	health    *health.Book
	metrics   *metrics.Set
	warm      *warmPool
	standings standings
	probes    *probes
}

// New makes a host; Close must be called.
func New(opt Options) (*Host, error) {
	if opt.Policy == nil || opt.Runtime == nil {
		return nil, errors.New("a host needs a policy and a runtime")
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	h := &Host{opt: opt, log: opt.Log, now: opt.Now, metrics: metrics.New(), warm: newWarmPool(opt.Warm, opt.Log), probes: newProbes()}
	if err := os.MkdirAll(h.artifactDir(), 0o711); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	var err error
	if h.receipts, err = receipt.Open(filepath.Join(opt.StateDir, "receipts")); err != nil {
		return nil, err
	}
	failures, window, duration := opt.Policy.Quarantine()
	h.health = health.Open(opt.StateDir, health.Rules{Failures: failures, Window: window, Duration: duration}, opt.Now)
	return h, nil
}

// Close stops every provider that still runs.
func (h *Host) Close(ctx context.Context) error {
	h.probes.close()
	return h.warm.close(ctx)
}

// Receipts gives the log.
func (h *Host) Receipts() *receipt.Log { return h.receipts }

// Metrics gives the counts of this process.
func (h *Host) Metrics() *metrics.Set { return h.metrics }

func (h *Host) artifactDir() string { return filepath.Join(h.opt.StateDir, "artifacts") }

func (h *Host) name() schemas.NameVersion {
	return schemas.NameVersion{Name: "aspis", Version: h.opt.Version}
}
