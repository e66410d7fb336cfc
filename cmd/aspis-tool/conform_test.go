package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestConformance: the runner behaves as ASP asks, also where it is given no tool.
func TestConformance(t *testing.T) {
	out, err := exec.Command(filepath.Join(programs, "aspis"), "conformance", "provider", "--", filepath.Join(programs, "aspis-tool"), "--id", "some-tool", "--version", "1.2").CombinedOutput()
	if err != nil || !strings.Contains(string(out), " 0 failed, 0 skipped") {
		t.Errorf("%v\n%s", err, out)
	}
}
