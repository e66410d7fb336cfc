// Package telemetry sends what providers cost and how they failed to an
// OpenTelemetry endpoint, where the environment names one by the variables of
// that project's own specification. Without one nothing is set up and nothing
// is sent. It knows nothing of the host but the four values of an observation.
package telemetry

import (
	"context"
	"fmt"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
)

// Sender records observations; a nil Sender records nothing.
type Sender struct {
	provider *sdk.MeterProvider
	latency  metric.Float64Histogram
	failures metric.Int64Counter
}

// flushTimeout bounds the last sending: a gate does not wait for telemetry.
const flushTimeout = 2 * time.Second

// New makes a Sender when OTEL_EXPORTER_OTLP_ENDPOINT or its variant for
// metrics is set, else nil.
func New(ctx context.Context) (*Sender, error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") == "" {
		return nil, nil
	}
	exporter, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithTimeout(flushTimeout))
	if err != nil {
		return nil, fmt.Errorf("set up telemetry: %w", err)
	}
	s := &Sender{provider: sdk.NewMeterProvider(sdk.WithReader(sdk.NewPeriodicReader(exporter)))}
	meter := s.provider.Meter("github.com/aspis-dev/aspis")
	if s.latency, err = meter.Float64Histogram("aspis.provider.latency", metric.WithUnit("ms"), metric.WithDescription("Time from launch to answer.")); err != nil {
		return nil, fmt.Errorf("set up telemetry: %w", err)
	}
	if s.failures, err = meter.Int64Counter("aspis.provider.failures", metric.WithDescription("Runs that failed, by reason.")); err != nil {
		return nil, fmt.Errorf("set up telemetry: %w", err)
	}
	return s, nil
}

// Observe adds one run of a provider: its latency in milliseconds and, when it
// failed, the reason.
func (s *Sender) Observe(provider, site string, ms float64, failure string) {
	if s == nil {
		return
	}
	who := []attribute.KeyValue{attribute.String("provider", provider), attribute.String("call_site", site)}
	s.latency.Record(context.Background(), ms, metric.WithAttributes(who...))
	if failure != "" {
		s.failures.Add(context.Background(), 1, metric.WithAttributes(append(who, attribute.String("reason", failure))...))
	}
}

// Close sends what is left, for at most two seconds.
func (s *Sender) Close(ctx context.Context) error {
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := s.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send telemetry: %w", err)
	}
	return nil
}
