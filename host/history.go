package host

import (
	"context"

	"github.com/go-json-experiment/json"

	"github.com/aspis-dev/aspis/host/metrics"
	"github.com/aspis-dev/aspis/host/receipt"
)

// historyRecords bounds how much of the log is counted.
const historyRecords = 10_000

// MetricsOf counts what the newest receipts and their evidence show of each
// provider, so that counts outlive the process that answered.
func MetricsOf(ctx context.Context, log *receipt.Log) (*metrics.Set, error) {
	records, err := log.List(ctx, historyRecords)
	if err != nil {
		return nil, err
	}
	set := metrics.New()
	for _, r := range records {
		raw, err := log.Evidence(r.Receipt.ReceiptID)
		if err != nil {
			continue // answers without evidence ran no provider
		}
		var ev EvidenceRecord
		if json.Unmarshal(raw, &ev) != nil {
			continue
		}
		for _, p := range ev.Providers {
			set.Observe(p.ID, string(r.Receipt.CallSite), p.ElapsedMs, p.Reason)
		}
	}
	return set, nil
}
