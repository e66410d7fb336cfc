package hygiene

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/schemas"
)

func TestCORE_SERVER_INITIALIZE(t *testing.T) {
	c := start(t)
	r := c.initialize()
	info, err := schemas.DecodeInitializeResult(r.Result, schemas.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(program)
	if info.ServerInfo != (schemas.ServerInfo{Name: "aspis-hygiene", Version: "1.2.3", Fingerprint: "sha256:" + hex.EncodeToString(sum[:])}) {
		t.Fatalf("%+v", info.ServerInfo)
	}
	p := info.RequestedPermissions
	if *p.Write || *p.Network || !slices.Equal(p.Read, []string{"**"}) || *p.ResourceLimits.MemoryMB > 512 {
		t.Fatalf("it asks for more than reading: %+v", p)
	}
	if check := info.Capabilities.Check; !slices.Equal(check.DiagnosticSources, []string{"hygiene"}) || len(check.Comparisons) != 3 {
		t.Fatalf("%+v", check)
	}
}

func TestCORE_SERVER_UNSUPPORTED_PROTOCOL(t *testing.T) {
	c := start(t)
	r := c.call("initialize", obj{"protocolVersion": "asp/2.0", "host": obj{"name": "t", "version": "0"}, "workspace": obj{"root": "/", "baseline": baseline}})
	if r.Error == nil || r.Error.Code != schemas.CodeUnsupportedVersion || r.Error.Data.FailClass != schemas.FailContract {
		t.Fatalf("%+v", r)
	}
}

func empty() obj {
	return obj{"changeset": obj{"baseline": baseline, "changes": []obj{}}, "scope": "changeset", "comparison": "introduced"}
}

func TestCORE_SERVER_PREINITIALIZED(t *testing.T) {
	c := start(t)
	for range 2 {
		r := c.call("check/evaluate", empty())
		if r.Error == nil || r.Error.Code != schemas.CodeHealthNotReady || r.Error.Data.FailClass != schemas.FailHealth {
			t.Fatalf("%+v", r)
		}
		c.initialize()
	}
}

func TestCORE_SERVER_INITIALIZED_GRANT(t *testing.T) {
	c := start(t)
	c.initialize()
	// Limits are always in a grant; one without is none.
	c.send(obj{"jsonrpc": "2.0", "method": "initialized", "params": obj{"grantedPermissions": obj{"read": []string{"**"}}, "baseline": baseline}})
	if r := c.call("check/evaluate", empty()); r.Error == nil {
		t.Fatal("it works without a grant")
	}
	c.send(obj{"jsonrpc": "2.0", "method": "initialized", "params": obj{"grantedPermissions": obj{"read": []string{"**"}, "resourceLimits": obj{"memoryMb": 64}}, "baseline": baseline}})
	if r := c.call("check/evaluate", empty()); r.Error != nil {
		t.Fatal(r.Error)
	}
}

// TestCORE_SERVER_CALLBACK_CONTENT gives bytes that are nowhere but in answers.
func TestCORE_SERVER_CALLBACK_CONTENT(t *testing.T) {
	c := start(t)
	c.greet()
	for i := range 80 {
		c.base[fmt.Sprint("f", i)] = fmt.Sprint("text ", i)
	}
	a := c.check(obj{"scope": "workspace", "comparison": "all"}, c.change("a.py", "", nothing, "k = \""+key(1)+"\"\n"), c.change("f3", "", "text 3", "text three"))
	// check compares the number of blobs named with the number served.
	if got := codes(a); !slices.Equal(got, []string{"secret"}) || len(a.ValidAsOf.Blobs) != 82 || !slices.IsSorted(a.ValidAsOf.Blobs) {
		t.Fatalf("%v, %d blobs", got, len(a.ValidAsOf.Blobs))
	}
	if string(a.Evidence[0].Data) == "" || !strings.Contains(string(a.Evidence[0].Data), `"files":82`) {
		t.Fatalf("%s", a.Evidence[0].Data)
	}
}

// TestCORE_SERVER_GRANT_SCOPE refuses some blobs, or the tree: what could not be
// read is told, and what could be is still judged.
func TestCORE_SERVER_GRANT_SCOPE(t *testing.T) {
	c := start(t)
	c.greet()
	hidden, seen := c.change("hidden", "", nothing, "hidden\n"), c.change("a.py", "", nothing, "k = \""+key(1)+"\"\n")
	delete(c.blobs, hidden["after"].(string))
	a := c.check(nil, hidden, seen)
	if a.Status != schemas.StatusIncomplete || len(a.Coverage.Degraded) != 1 || !a.Coverage.Truncated || a.Coverage.Exhaustive ||
		a.Coverage.Degraded[0].Reason != schemas.ReasonIncomplete || !strings.Contains(a.Coverage.Degraded[0].Detail, "hidden") {
		t.Fatalf("%+v", a)
	}
	if got := codes(a); !slices.Equal(got, []string{"secret"}) {
		t.Fatal(got)
	}
	// What was before cannot be read: the finding counts as new.
	old := c.change("a.py", "", "k = \""+key(1)+"\" #\n", "k = \""+key(1)+"\"\n")
	delete(c.blobs, old["before"].(string))
	if a := c.check(nil, old); a.Status != schemas.StatusIncomplete || len(a.Diagnostics) != 1 {
		t.Fatalf("%s %v", a.Status, codes(a))
	}
	c.deny = true
	if a := c.check(nil, seen); a.Status != schemas.StatusIncomplete || len(a.Diagnostics) != 1 {
		t.Fatalf("%s %v", a.Status, codes(a))
	}
	c.deny, c.cut = false, true
	if a := c.check(nil, seen); a.Status != schemas.StatusIncomplete || !a.Coverage.Truncated {
		t.Fatalf("%s %v", a.Status, codes(a))
	}
	c.cut = false
	many := []obj{}
	for i := range 100 {
		ch := c.change(fmt.Sprint("h", i), "", nothing, fmt.Sprint(i))
		delete(c.blobs, ch["after"].(string))
		many = append(many, ch)
	}
	if a := c.check(nil, many...); len(a.Coverage.Degraded) != maxLost+1 {
		t.Fatalf("%d degradations", len(a.Coverage.Degraded))
	}
}

// TestCORE_SERVER_VALID_RESULTS gives each status its cause.
func TestCORE_SERVER_VALID_RESULTS(t *testing.T) {
	c := start(t)
	c.greet()
	file := c.change("a.py", "", nothing, "k = \""+key(1)+"\"\n\u200b\n")
	for name, tc := range map[string]struct {
		params obj
		status schemas.Status
		codes  []string
		unsup  int
	}{
		"complete":           {nil, schemas.StatusComplete, []string{"invisible-character", "secret"}, 0},
		"own source":         {obj{"diagnosticSources": []string{"lint", "hygiene"}}, schemas.StatusComplete, []string{"invisible-character", "secret"}, 0},
		"other source":       {obj{"diagnosticSources": []string{"lint"}}, schemas.StatusUnsupported, nil, 1},
		"one rule":           {obj{"rules": []string{"secret"}}, schemas.StatusComplete, []string{"secret"}, 0},
		"by its code":        {obj{"rules": []string{"hygiene/invisible-character"}}, schemas.StatusComplete, []string{"invisible-character"}, 0},
		"no such rule":       {obj{"rules": []string{"spelling"}}, schemas.StatusUnsupported, nil, 1},
		"one of two":         {obj{"rules": []string{"spelling", "secret"}}, schemas.StatusIncomplete, []string{"secret"}, 1},
		"needs the snapshot": {obj{"rules": []string{"new-executable"}}, schemas.StatusUnsupported, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			a := c.check(tc.params, file)
			if got := codes(a); a.Status != tc.status || !slices.Equal(got, tc.codes) || len(a.Coverage.Unsupported) != tc.unsup {
				t.Fatalf("%s %v %+v", a.Status, got, a.Coverage)
			}
			if (a.Status == schemas.StatusComplete) != a.Coverage.Exhaustive {
				t.Fatalf("%s, exhaustive %v", a.Status, a.Coverage.Exhaustive)
			}
		})
	}
	t.Run("without the snapshot", func(t *testing.T) {
		c.t = t
		a := c.check(nil, file)
		for _, rule := range []string{ruleExecutable, ruleSymlink} {
			if slices.Contains(a.Coverage.Covered.Rules, rule) {
				t.Fatalf("%s is called covered", rule)
			}
		}
	})
	t.Run("error", func(t *testing.T) {
		c := start(t)
		c.greet()
		ch := c.change("a", "", nothing, "text")
		c.blobs[ch["after"].(string)] = "other bytes than the name says"
		// The host lies about a blob: nothing that was read can be believed.
		r := c.call("check/evaluate", obj{"changeset": obj{"baseline": baseline, "changes": []obj{ch}}, "scope": "changeset", "comparison": "introduced"})
		a, err := schemas.DecodeAssessment(r.Result, schemas.Limits{})
		if err != nil || a.Status != schemas.StatusError || a.Coverage.Degraded[0].Reason != schemas.ReasonError {
			t.Fatalf("%v %+v", err, a)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		c := start(t)
		c.greet()
		ch := c.change("a", "", nothing, "text")
		c.send(obj{"jsonrpc": "2.0", "id": "c", "method": "check/evaluate", "params": obj{"changeset": obj{"baseline": baseline, "changes": []obj{ch}}, "scope": "changeset", "comparison": "introduced"}})
		if _, err := c.out.ReadBytes('\n'); err != nil { // the callback, which is not answered
			t.Fatal(err)
		}
		c.send(obj{"jsonrpc": "2.0", "method": "$/cancelRequest", "params": obj{"id": "c"}})
		a, err := schemas.DecodeAssessment(c.wait("c").Result, schemas.Limits{})
		if err != nil || a.Status != schemas.StatusCancelled || len(a.ValidAsOf.Blobs) != 0 {
			t.Fatalf("%v %+v", err, a)
		}
		if a := c.check(nil, c.change("b", "", nothing, "fine\n")); a.Status != schemas.StatusComplete {
			t.Fatal("it does not go on")
		}
	})
}

func TestCORE_SERVER_TYPED_ERROR(t *testing.T) {
	c := start(t)
	c.greet()
	for name, r := range map[string]reply{
		"no such method": c.call("edit/propose", obj{}),
		"no params":      c.call("check/evaluate", nil),
		"bad changeset": c.call("check/evaluate", obj{"changeset": obj{"baseline": baseline, "changes": []obj{{"path": "../x", "kind": "create", "after": "blob:sha256:" + strings.Repeat("0", 64)}}},
			"scope": "changeset", "comparison": "introduced"}),
	} {
		if r.Error == nil || r.Error.Data == nil || r.Error.Data.FailClass == "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if a := c.check(nil, c.change("a", "", nothing, "fine\n")); a.Status != schemas.StatusComplete {
		t.Fatal("it does not go on after errors")
	}
}

func TestCORE_SERVER_REJECTED_MALFORMED_HOST_FIELDS(t *testing.T) {
	c := start(t)
	c.greet()
	for field, value := range map[string]any{"decision": "allow", "authority": obj{"granted": true}, "verdict": obj{}, "policyDigest": "x", "pass": true} {
		q := empty()
		q[field] = value
		if r := c.call("check/evaluate", q); r.Error == nil || r.Error.Data.FailClass != schemas.FailInput {
			t.Errorf("%s: %+v", field, r)
		}
	}
}

func TestCORE_SERVER_REJECTED_FRESHNESS(t *testing.T) {
	c := start(t)
	c.greet()
	q := empty()
	moved := obj{"rev": "git:tree:" + strings.Repeat("1", 40)}
	q["changeset"] = obj{"baseline": moved, "changes": []obj{}}
	if r := c.call("check/evaluate", q); r.Error == nil || r.Error.Code != schemas.CodeStaleBaseline || !*r.Error.Data.Retryable {
		t.Fatalf("%+v", r)
	}
	c.send(obj{"jsonrpc": "2.0", "method": "workspace/baselineChanged", "params": obj{"baseline": moved}})
	r := c.call("check/evaluate", q)
	a, err := schemas.DecodeAssessment(r.Result, schemas.Limits{})
	if err != nil || a.ValidAsOf.Baseline.Rev != moved["rev"] {
		t.Fatalf("%v %+v", err, r)
	}
}

// TestCORE_SERVER_TIMEOUT gives it a file made to be slow, within what one
// answer carries.
func TestCORE_SERVER_TIMEOUT(t *testing.T) {
	if testing.Short() {
		t.Skip("scans tens of megabytes")
	}
	c := start(t)
	c.greet()
	for name, text := range map[string]string{
		"words of rules":     strings.Repeat("eyJ s. key api ", 1<<18),
		"one run of letters": strings.Repeat("eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9", 1<<17),
		"heads of keys":      strings.Repeat("-----BEGIN PRIVATE ", 1<<17),
		"assignments":        strings.Repeat("token = x1 y", 1<<18),
		"brackets":           strings.Repeat("[", 4<<20),
		"hidden":             strings.Repeat("\u200b\n", 1<<20),
		"opened conflicts":   strings.Repeat("<<<<<<< \n=======\n", 1<<17),
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			began := time.Now()
			a := c.check(nil, c.change("a.txt", "", nothing, text), c.change("a.yaml", "", nothing, text))
			took := time.Since(began)
			t.Logf("%d bytes in %v, %s, %d findings", len(text), took, a.Status, len(a.Diagnostics))
			if took > 20*time.Second {
				t.Fatal("too slow")
			}
		})
	}
}

func TestCORE_SERVER_BEHAVIOR_ONLY(t *testing.T) {
	for shutdown, want := range map[bool]int{true: 0, false: 1} {
		c := start(t)
		c.greet()
		if shutdown {
			if r := c.call("shutdown", nil); r.Error != nil {
				t.Fatal(r.Error)
			}
		}
		c.send(obj{"jsonrpc": "2.0", "method": "exit"})
		done := make(chan error, 1)
		go func() { done <- c.cmd.Wait() }()
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Fatal("it did not exit")
		}
		if got := c.cmd.ProcessState.ExitCode(); got != want {
			t.Fatalf("shutdown %v: exit code %d", shutdown, got)
		}
	}
}

func TestConfigurationIsHonouredAndBound(t *testing.T) {
	c := start(t)
	c.greet()
	conf := obj{"disable": []string{"secret"}, "maxFileBytes": 10, "severity": obj{"large-file": "error"}}
	a := c.check(obj{"configuration": conf}, c.change("a", "", nothing, "k = \""+key(1)+"\"\n"))
	digest, _ := schemas.Digest(conf)
	if got := codes(a); !slices.Equal(got, []string{"large-file"}) || a.Provider.ConfigDigest != digest || a.Diagnostics[0].Severity != schemas.SeverityError {
		t.Fatal(got, a.Provider.ConfigDigest)
	}
	if slices.Contains(a.Coverage.Covered.Rules, "secret") {
		t.Fatal("a rule that is off is called covered")
	}
	none, _ := schemas.Digest(obj{})
	if a := c.check(nil, []obj{}...); a.Provider.ConfigDigest != none {
		t.Fatal("no configuration is not {}")
	}
	for _, bad := range []obj{{"disable": []string{"nothing"}}, {"surprise": 1}, {"maxFileBytes": -1}, {"maxFileBytes": "1"}, {"severity": obj{"secret": "fatal"}}, {"severity": obj{"nothing": "info"}}} {
		q := empty()
		q["configuration"] = bad
		if r := c.call("check/evaluate", q); r.Error == nil || r.Error.Data == nil || r.Error.Data.FailClass != schemas.FailInput {
			t.Fatalf("%v: %+v", bad, r)
		}
	}
}

// TestMoreThanAnAnswerHolds is never clean and never too large.
func TestMoreThanAnAnswerHolds(t *testing.T) {
	c := start(t)
	c.greet()
	changes := []obj{c.change("z.py", "", nothing, "k = \""+key(1)+"\"\n")}
	for i := range 4 {
		changes = append(changes, c.change(fmt.Sprint("f", i), "", nothing, strings.Repeat(fmt.Sprintf("x\u200b%d\n", i), maxHits+1)))
	}
	a := c.check(nil, changes...)
	if a.Status != schemas.StatusIncomplete || !a.Coverage.Truncated || len(a.Diagnostics) != maxDiagnostics || len(a.Coverage.Degraded) != 5 {
		t.Fatalf("%s, %d findings, %+v", a.Status, len(a.Diagnostics), a.Coverage.Degraded)
	}
	if a.Diagnostics[0].Code != "hygiene/secret" {
		t.Fatal("the error is not among what is reported")
	}
}

// TestMemoryStaysWithinWhatItAsksFor gives it what takes most.
func TestMemoryStaysWithinWhatItAsksFor(t *testing.T) {
	if testing.Short() {
		t.Skip("sends a hundred megabytes")
	}
	c := start(t)
	c.greet()
	const most = 30 << 20
	for name, tc := range map[string]struct {
		path, text string
		status     schemas.Status
	}{
		"lines":    {"a.txt", strings.Repeat("\n", most), schemas.StatusIncomplete},
		"binary":   {"a.bin", "\x00" + strings.Repeat("\xff", most), schemas.StatusComplete},
		"mappings": {"a.yaml", strings.Repeat("a:\n", maxPieces/2), schemas.StatusComplete},
		"values":   {"b.yaml", "[" + strings.Repeat("a,", maxPieces-2) + "]", schemas.StatusComplete},
		"anchors":  {"c.yaml", "[" + strings.Repeat("&a ,", maxPieces/2-2) + "]", schemas.StatusComplete},
		"too many": {"d.yaml", strings.Repeat("a:\n", maxPieces), schemas.StatusIncomplete},
		"tables":   {"a.toml", strings.Repeat("[[a]]\n", maxPieces/3-1), schemas.StatusComplete},
	} {
		a := c.check(nil, c.change(tc.path, "", nothing, tc.text))
		if a.Status != tc.status {
			t.Errorf("%s: %s %+v", name, a.Status, a.Coverage.Degraded)
		}
		delete(c.blobs, string(schemas.BlobRefOf([]byte(tc.text))))
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		_, peak, _ := strings.Cut(string(status), "VmHWM:")
		var kb int
		fmt.Sscan(peak, &kb)
		t.Logf("%s: %d MiB at most so far", name, kb>>10)
		if kb>>10 > MemoryMB {
			t.Errorf("%s: it took %d MiB", name, kb>>10)
		}
	}
}
