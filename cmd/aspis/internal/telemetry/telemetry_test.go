package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestNothingIsSentWithoutAnEndpoint(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "")
	s, err := New(context.Background())
	if s != nil || err != nil {
		t.Fatal(s, err)
	}
	s.Observe("p", "gate", 1, "")
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestObservationsReachTheEndpoint(t *testing.T) {
	got := make(chan []byte, 4)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = z
		}
		b, err := io.ReadAll(body)
		if err != nil || r.URL.Path != "/v1/metrics" {
			t.Error(r.URL.Path, err)
		}
		got <- b
	}))
	defer srv.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", srv.URL)
	s, err := New(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	s.Observe("linter", "gate", 12.5, "timed-out")
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	b := <-got
	for _, want := range []string{"aspis.provider.latency", "aspis.provider.failures", "linter", "timed-out"} {
		if !bytes.Contains(b, []byte(want)) {
			t.Errorf("%q was not sent", want)
		}
	}
}

func TestDeadEndpointHoldsNothingUp(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	s, err := New(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	s.Observe("p", "gate", 1, "")
	started := time.Now()
	if err := s.Close(context.Background()); err == nil {
		t.Fatal("no error")
	}
	if d := time.Since(started); d > 10*time.Second {
		t.Fatal(d)
	}
}
