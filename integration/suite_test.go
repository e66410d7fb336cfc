package integration

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aspis-dev/aspis/integration/conformance"
)

func suite(t *testing.T, args ...string) (conformance.Report, int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "aspis"), append([]string{"conformance", "--format", "json"}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var r conformance.Report
	if jsonErr := json.Unmarshal(out, &r); jsonErr != nil {
		t.Fatalf("%v: %v: %s%s", args, err, out, stderr.String())
	}
	return r, cmd.ProcessState.ExitCode()
}

func TestConformanceOfOurProviders(t *testing.T) {
	for _, p := range []string{"aspis-hygiene"} {
		r, code := suite(t, "provider", "--", filepath.Join(bin, p))
		if code != 0 || !r.OK() || r.Passed < 12 {
			t.Errorf("%s: exit code %d: %+v", p, code, r)
		}
	}
}

// TestConformanceFindsBadProviders checks that the provider suite is no rubber stamp.
func TestConformanceFindsBadProviders(t *testing.T) {
	for behave, id := range map[string]string{
		"malformed-init": "CORE-SERVER-INITIALIZE", "forge=decision": "CORE-SERVER-REJECTED-MALFORMED-HOST-FIELDS", "stale-digest": "CORE-SERVER-REJECTED-FRESHNESS",
		"stale-blob-extra": "CORE-SERVER-CALLBACK-CONTENT", "missing-member": "CORE-SERVER-VALID-RESULTS", "version=": "CORE-SERVER-INITIALIZE",
		"none": "CORE-SERVER-PREINITIALIZED", "crash": "CORE-SERVER-INITIALIZED-GRANT",
	} {
		r, code := suite(t, "provider", "--", filepath.Join(bin, "aspis-testprovider"), behave)
		if code != 1 || r.OK() {
			t.Errorf("%s: exit code %d: %+v", behave, code, r)
		}
		for _, res := range r.Results {
			if res.ID == id && res.Passed {
				t.Errorf("%s passes with %s", id, behave)
			}
		}
	}
}

func TestConformanceOfOurHost(t *testing.T) {
	r, code := suite(t, "host", "--only", "CORE-HOST-EVALUATE,HOSTILE-FORGED-HOST-FIELDS")
	if code != 0 || r.Passed != 2 {
		t.Errorf("exit code %d: %+v", code, r)
	}
	// A host that does not exist, or is none, passes nothing.
	r, code = suite(t, "host", "--bin", "/bin/true", "--only", "CORE-HOST-STATUS")
	if code != 1 || r.Failed != 1 {
		t.Errorf("/bin/true: exit code %d: %+v", code, r)
	}
}
