package container

import (
	"io"
	"testing"

	"github.com/aspis-dev/aspis/sandbox"
)

// run starts, releases, reads everything and closes.
func run(tb testing.TB, rt *Runtime, spec sandbox.Spec) (out string, exit sandbox.ExitState) {
	tb.Helper()
	ctx := testContext(tb)
	p, err := rt.Start(ctx, spec)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() {
		if err := p.Close(ctx); err != nil {
			tb.Error(err)
		}
	}()
	if err := p.Release(ctx); err != nil {
		tb.Fatal(err)
	}
	b, err := io.ReadAll(p.Stdout())
	if err != nil {
		tb.Fatal(err)
	}
	exit, err = p.Wait(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b), exit
}

func TestStart(t *testing.T) {
	rt := newRuntime(t)
	out, exit := run(t, rt, probeSpec("see"))
	t.Logf("%v\n%s", exit, out)
}

func BenchmarkStart(b *testing.B) {
	rt := newRuntime(b)
	ctx := testContext(b)
	for b.Loop() {
		p, err := rt.Start(ctx, probeSpec())
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Release(ctx); err != nil {
			b.Fatal(err)
		}
		var one [1]byte
		if _, err := io.ReadFull(p.Stdout(), one[:]); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := p.Close(ctx); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
