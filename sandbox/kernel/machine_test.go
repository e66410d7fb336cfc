package kernel

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aspis-dev/aspis/sandbox"
)

// report is what the tests print of a probe.
func report(list []Finding) string {
	var b strings.Builder
	for _, f := range list {
		mark := "  "
		if !f.OK {
			mark = "! "
		}
		b.WriteString(mark + f.Name + ": " + f.Seen)
		if f.Fix != "" {
			b.WriteString("\n      fix: " + f.Fix)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestProbe(t *testing.T) {
	dir := t.TempDir()
	list := Probe(context.Background(), filepath.Join(dir, "not", "yet"))
	t.Log("\n" + report(list))
	names := map[string]bool{}
	for _, f := range list {
		if f.Name == "" || f.Tried == "" || f.Seen == "" || names[f.Name] {
			t.Errorf("finding %+v", f)
		}
		names[f.Name] = true
		if !f.OK && f.Fix == "" {
			t.Errorf("%s has no remedy", f.Name)
		}
		for _, w := range f.Walls {
			if _, ok := sandbox.Lookup(w); !ok {
				t.Errorf("%s names a wall %q", f.Name, w)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestProbeAsOrdinaryUser(t *testing.T) {
	t.Log(AsNobody(t, "TestProbe"))
}

func TestTrialByHand(t *testing.T) {
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", trialMarker, t.TempDir())
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("it went ahead: %s", out)
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || string(before) != string(after) {
		t.Errorf("mounts changed: %v", err)
	}
}

func TestProbeEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, f := range Probe(ctx, "relative/path") {
		if f.Name == "mounts" && f.OK {
			t.Errorf("tried after the end: %+v", f)
		}
	}
}

func BenchmarkProbe(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		Probe(context.Background(), dir)
	}
}
