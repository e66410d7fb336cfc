package schemas

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const (
	someBlob  = "blob:sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	otherBlob = "blob:sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	someSum   = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
)

func TestDecodeIsStrict(t *testing.T) {
	type v struct {
		A int    `json:"a"`
		B string `json:"b,omitzero"`
	}
	for name, tc := range map[string]struct {
		text, want string
	}{
		"unknown member": {`{"a":1,"c":2}`, "/c"},
		"doubled name":   {`{"a":1,"a":2}`, "duplicate"},
		"bad UTF-8":      {"{\"b\":\"\xff\"}", "UTF-8"},
		"lone surrogate": {`{"b":"\ud800"}`, "surrogate"},
		"trailing":       {`{"a":1} {}`, ""},
		"empty":          {``, "no JSON"},
		"wrong type":     {`{"a":"x"}`, "/a"},
		"case":           {`{"A":1}`, "/A"},
		"cut":            {`{"a":1`, ""},
		"fraction":       {`{"a":1.5}`, "/a"},
		"overflow":       {`{"a":1e400}`, "/a"},
	} {
		t.Run(name, func(t *testing.T) {
			var x v
			err := Decode([]byte(tc.text), &x, Limits{})
			var d *DecodeError
			if !errors.As(err, &d) || !strings.Contains(err.Error(), tc.want) {
				t.Fatal(err)
			}
		})
	}
	var x v
	if err := Decode([]byte(` {"b":"é\n","a":-3} `), &x, Limits{}); err != nil || x.A != -3 {
		t.Fatal(x, err)
	}
}

func TestDecodeIsBounded(t *testing.T) {
	var x any
	for name, tc := range map[string]struct {
		text string
		lim  Limits
	}{
		"bytes":    {`"` + strings.Repeat("x", 100) + `"`, Limits{MaxBytes: 50}},
		"depth":    {strings.Repeat("[", 20) + strings.Repeat("]", 20), Limits{MaxDepth: 10}},
		"elements": {"[" + strings.Repeat("1,", 100) + "1]", Limits{MaxElements: 50}},
		"default":  {strings.Repeat("[", 9000) + strings.Repeat("]", 9000), Limits{}},
	} {
		if err := Decode([]byte(tc.text), &x, tc.lim); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCanonical(t *testing.T) {
	for in, want := range map[string]string{
		`{"b":1,"a":[true,null]}`:              `{"a":[true,null],"b":1}`,
		" { \"x\" : \"<&>\\u0041\\/\" } ":      `{"x":"<&>A/"}`,
		`[1.0,1e2,-0,1E-7,0.000001,123456789]`: `[1,100,0,1e-7,0.000001,123456789]`,
		`{"a":{"d":1,"c":2}}`:                  `{"a":{"c":2,"d":1}}`,
		"{\"\\n\":\"\\u0007\\t\"}":             `{"\n":"\u0007\t"}`,
		// RFC 8785 sorts by UTF-16, which would put U+10000 before U+FFFF;
		// asp-wire sorts by code point.
		"{\"\U00010000\":1,\"\uffff\":2}": "{\"\uffff\":2,\"\U00010000\":1}",
		`[{"z":[{"b":0,"a":"𐀀"}]}]`:       `[{"z":[{"a":"𐀀","b":0}]}]`,
	} {
		got, err := Canonical([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%s: got %s (%v), want %s", in, got, err, want)
		}
	}
	for _, bad := range []string{`{"a":1,"a":1}`, `{`, ``, "\"\xff\""} {
		if _, err := Canonical([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// TestDigestVector pins the digest, so that providers written by others agree.
func TestDigestVector(t *testing.T) {
	got, err := Digest(ChangeSet{Baseline: Baseline{Rev: "git:tree:4b825dc642cb6eb9a060e54bf8d69288fbee4904"}, Changes: []Change{{Path: "a<b", Kind: ChangeCreate, After: someBlob}}})
	if err != nil {
		t.Fatal(err)
	}
	// echo -n '{"baseline":{"rev":"git:tree:4b8…904"},"changes":[{"after":"blob:…","kind":"create","path":"a<b"}]}' | sha256sum
	again, err := DigestRaw([]byte(`{"changes":[{"kind":"create","after":"` + someBlob + `","path":"a\u003cb"}],"baseline":{"rev":"git:tree:4b825dc642cb6eb9a060e54bf8d69288fbee4904"}}`))
	if err != nil || got != again {
		t.Fatal(got, again, err)
	}
	empty, err := DigestRaw([]byte("{}"))
	if err != nil || empty != "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a" {
		t.Fatal(empty, err)
	}
}

func TestCanonicalAgreesWithEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := map[string]any{}
		for _, k := range rapid.SliceOf(rapid.StringMatching(`[a-z<>&"\\é]{0,4}`)).Draw(t, "keys") {
			m[k] = rapid.OneOf(rapid.Just[any](nil), rapid.Map(rapid.IntRange(-1000, 1000), func(i int) any { return i }), rapid.Map(rapid.StringMatching(`[ -~]{0,8}`), func(s string) any { return s })).Draw(t, "value")
		}
		raw, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(m); err != nil {
			t.Fatal(err)
		}
		got, err := Canonical(raw)
		if err != nil || string(got) != strings.TrimSuffix(b.String(), "\n") {
			t.Fatalf("%s %v, want %s", got, err, b.String())
		}
	})
}

func TestValidPath(t *testing.T) {
	for _, ok := range []string{"a", "a/b", "..a", "a..", ".git", "a b", "a\nb", "ü"} {
		if err := ValidPath(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{"", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\x00b", `a\b`, "a\xffb"} {
		if ValidPath(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestChangeSetRules(t *testing.T) {
	for name, tc := range map[string]struct {
		changes []Change
		want    string
	}{
		"create":                {[]Change{{Path: "a", Kind: "create", After: someBlob}}, ""},
		"modify":                {[]Change{{Path: "a", Kind: "modify", Before: someBlob, After: otherBlob}}, ""},
		"delete":                {[]Change{{Path: "a", Kind: "delete", Before: someBlob}}, ""},
		"rename":                {[]Change{{Path: "a", Kind: "rename", From: "b", Before: someBlob}}, ""},
		"rename with change":    {[]Change{{Path: "a", Kind: "rename", From: "b", Before: someBlob, After: otherBlob}}, ""},
		"create without after":  {[]Change{{Path: "a", Kind: "create"}}, "needs after"},
		"create with before":    {[]Change{{Path: "a", Kind: "create", Before: someBlob, After: otherBlob}}, "has no before"},
		"modify without before": {[]Change{{Path: "a", Kind: "modify", After: otherBlob}}, "needs before"},
		"delete with after":     {[]Change{{Path: "a", Kind: "delete", Before: someBlob, After: otherBlob}}, "has no after"},
		"rename without from":   {[]Change{{Path: "a", Kind: "rename", Before: someBlob}}, "needs from"},
		"move":                  {[]Change{{Path: "a", Kind: "move", From: "b", Before: someBlob}}, "kind"},
		"escape":                {[]Change{{Path: "../a", Kind: "delete", Before: someBlob}}, "path"},
		"bad blob":              {[]Change{{Path: "a", Kind: "delete", Before: "blob:sha256:XY"}}, "before"},
		"twice":                 {[]Change{{Path: "a", Kind: "delete", Before: someBlob}, {Path: "a", Kind: "create", After: otherBlob}}, "two changes"},
	} {
		err := ValidateChangeSet(&ChangeSet{Baseline: Baseline{Rev: "r"}, Changes: tc.changes})
		if (err == nil) != (tc.want == "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestScopeHasThreeForms(t *testing.T) {
	for in, want := range map[string]string{`"changeset"`: "", `"workspace"`: "", `{"paths":["a"]}`: "", `"other"`: "x", `{"paths":[]}`: "x", `{}`: "x", `{"paths":["a"],"x":1}`: "x", `1`: "x", `null`: "x"} {
		var s Scope
		err := Decode([]byte(in), &s, Limits{})
		if (err == nil) != (want == "") {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if err == nil {
			if b, err := Marshal(s); err != nil || string(b) != in {
				t.Errorf("%s came back as %s (%v)", in, b, err)
			}
		}
	}
}

// assessment is an honest one, as JSON.
func assessment() string {
	part := `{"scope":"changeset","diagnosticSources":["s"],"rules":[],"comparison":"introduced"}`
	return `{"status":"complete","diagnostics":[{"code":"s/r","severity":"error","source":"s","message":"m","location":{"path":"a","range":{"start":{"line":0,"char":1},"end":{"line":0,"char":2}}},"fingerprint":"f"}],` +
		`"coverage":{"requested":` + part + `,"covered":` + part + `,"degraded":[],"unsupported":[],"exhaustive":true,"truncated":false},` +
		`"validAsOf":{"baseline":{"rev":"r"},"changesetDigest":"` + someSum + `","blobs":["` + someBlob + `"]},` +
		`"provider":{"id":"p","version":"1","configDigest":"c","capabilityVersion":"1"},"timing":{"elapsedMs":1},"cache":{"status":"disabled"},` +
		`"evidence":[{"kind":"metric","data":{"n":1}}]}`
}

func TestAssessmentRules(t *testing.T) {
	if _, err := DecodeAssessment([]byte(assessment()), Limits{}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string][2]string{
		"status":           {`"complete"`, `"perfect"`},
		"severity":         {`"error"`, `"fatal"`},
		"code":             {`"s/r"`, `"sr"`},
		"path":             {`"path":"a"`, `"path":"../a"`},
		"negative line":    {`"line":0`, `"line":-1`},
		"range backwards":  {`"char":1`, `"char":9`},
		"blob twice":       {`["` + someBlob + `"]`, `["` + someBlob + `","` + someBlob + `"]`},
		"blob form":        {someBlob, "blob:sha256:a"},
		"digest form":      {someSum, "x"},
		"no timing":        {`{"elapsedMs":1}`, `{}`},
		"half timing":      {`{"elapsedMs":1}`, `{"startedAt":"2026-01-01T00:00:00Z"}`},
		"cache":            {`"disabled"`, `"warm"`},
		"evidence kind":    {`"metric"`, `"verdict"`},
		"evidence data":    {`{"n":1}`, `[1]`},
		"no exhaustive":    {`"exhaustive":true,`, ``},
		"no truncated":     {`,"truncated":false`, ``},
		"no diagnostics":   {`"diagnostics":[`, `"other":[`},
		"null diagnostics": {`"degraded":[]`, `"degraded":null`},
		"no fingerprint":   {`,"fingerprint":"f"`, ``},
		"no rev":           {`{"rev":"r"}`, `{}`},
		"two fixes":        {`"fingerprint":"f"`, `"fingerprint":"f","fix":{"editRef":"a","actRef":"b"}`},
		"reason":           {`"degraded":[]`, `"degraded":[{"source":"s","reason":"tired","detail":"d"}]`},
		"wrong family":     {`"capabilityVersion":"1"}`, `"capabilityVersion":"1","capabilityFamily":"edit"}`},
	} {
		raw := strings.Replace(assessment(), tc[0], tc[1], 1)
		if raw == assessment() {
			t.Fatalf("%s: nothing was changed", name)
		}
		if a, err := DecodeAssessment([]byte(raw), Limits{}); err == nil {
			t.Errorf("%s was taken: %+v", name, a)
		}
	}
}

func TestHostOwnedFieldsAreFoundAtAnyDepth(t *testing.T) {
	names := []string{"authority", "assurance", "decision", "disposition", "pass", "transactionGuarantee", "verdict", "applyReceipt", "receipt",
		"policyDigest", "policyRef", "policyReference", "authorityEvidence", "hostDecision", "applyAttempt", "applyResult"}
	for _, n := range names {
		for _, place := range []string{`{"%s":1}`, `{"a":{"%s":1}}`, `{"a":[{"b":[{"%s":null}]}]}`, `{"evidence":[{"data":{"x":{"%s":{}}}}]}`} {
			if at, found := ForbiddenField(fmt.Appendf(nil, place, n), false); !found || !strings.HasSuffix(at, "/"+n) {
				t.Errorf("%s in %s: %q %v", n, place, at, found)
			}
		}
		if _, found := ForbiddenField(fmt.Appendf(nil, `{"a":"%s","b":["%s"]}`, n, n), false); found {
			t.Errorf("%s as a value was refused", n)
		}
	}
	for _, n := range []string{"command", "commands", "script", "scripts", "shell", "argv"} {
		raw := fmt.Appendf(nil, `{"args":{"%s":["rm"]}}`, n)
		if _, found := ForbiddenField(raw, true); !found {
			t.Errorf("%s in edit output was taken", n)
		}
		if _, found := ForbiddenField(raw, false); found {
			t.Errorf("%s in check output was refused", n)
		}
	}
	if at, found := ForbiddenField([]byte(assessment()), false); found {
		t.Errorf("an honest assessment was refused at %s", at)
	}
}

func TestEditPlanRules(t *testing.T) {
	plan := func() *EditPlan {
		return &EditPlan{ProposalID: "p", Provider: EditProvider{ID: "e", Version: "1", CapabilityFamily: Edit}, Status: StatusComplete,
			Baseline: Baseline{Rev: "r"}, ValidAsOf: EditValidAsOf{Baseline: Baseline{Rev: "r"}, Blobs: []BlobRef{}},
			TouchedResources: []Touched{{Path: "a", Kind: ChangeModify, Precondition: Precondition{ExpectedDigest: someBlob}}},
			WorkspaceEdit: &WorkspaceEdit{Baseline: Baseline{Rev: "r"}, DocumentChanges: []DocChange{
				{Path: "a", Kind: ChangeModify, Precondition: Precondition{ExpectedDigest: someBlob}, After: otherBlob}}}}
	}
	if err := ValidateEditPlan(plan()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*EditPlan){
		"complete without edit":  func(p *EditPlan) { p.WorkspaceEdit = nil },
		"incomplete without why": func(p *EditPlan) { p.Status = StatusIncomplete },
		"error without refusal":  func(p *EditPlan) { p.Status = StatusError },
		"two preconditions":      func(p *EditPlan) { p.TouchedResources[0].Precondition.ExpectedAbsence = true },
		"no precondition":        func(p *EditPlan) { p.WorkspaceEdit.DocumentChanges[0].Precondition = Precondition{} },
		"modify expects absence": func(p *EditPlan) {
			p.WorkspaceEdit.DocumentChanges[0].Precondition = Precondition{ExpectedAbsence: true}
		},
		"edits and after": func(p *EditPlan) {
			p.WorkspaceEdit.DocumentChanges[0].Edits = []TextEdit{{RangeBasis: someBlob, CoordinateSystem: "utf16"}}
		},
		"neither edits nor after": func(p *EditPlan) { p.WorkspaceEdit.DocumentChanges[0].After = "" },
		"to on a modify":          func(p *EditPlan) { p.WorkspaceEdit.DocumentChanges[0].To = "b" },
		"rename without to":       func(p *EditPlan) { p.TouchedResources[0].Kind = ChangeRename },
		"escape":                  func(p *EditPlan) { p.TouchedResources[0].Path = "/etc/passwd" },
		"confidence":              func(p *EditPlan) { c := 1.5; p.Confidence = &c },
		"family":                  func(p *EditPlan) { p.Provider.CapabilityFamily = Check },
	} {
		p := plan()
		change(p)
		if ValidateEditPlan(p) == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestManifestGrantsNoTrust(t *testing.T) {
	good := `{"manifestVersion":"asp-server/1.0","server":{"id":"p","name":"p","version":"1"},"protocolVersions":["asp/1.0"],"capabilities":["check"],` +
		`"entrypoint":{"transport":"stdio","bin":"/opt/p","args":[]},"artifact":{"fingerprint":"x"},"provenance":{"publisher":"a","source":"b","license":"c"},` +
		`"accessExpectations":{"filesystem":{"read":["**"],"write":[]},"network":{"outbound":false,"allowlist":[]},"secrets":{"names":[]},"environment":{"inherit":false,"variables":[]},"dataClasses":[]}}`
	if _, err := DecodeManifest([]byte(good), Limits{}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range [][2]string{
		{`"/opt/p"`, `"p"`}, {`"inherit":false`, `"inherit":true`}, {`"server":{`, `"trusted":true,"server":{`}, {`"fingerprint":"x"`, `"fingerprint":"x","certification":{}`},
		{`"asp/1.0"`, `"asp/9"`}, {`"stdio"`, `"socket"`}, {`"license":"c"`, `"license":"c","gateAuthority":1`},
	} {
		if _, err := DecodeManifest([]byte(strings.Replace(good, tc[0], tc[1], 1)), Limits{}); err == nil {
			t.Errorf("%s was taken", tc[1])
		}
	}
}

func TestModesAreOrdered(t *testing.T) {
	want := []AssuranceMode{Advisory, Gated, MediatedWrite, Isolated}
	if !slices.IsSortedFunc(want, func(a, b AssuranceMode) int { return a.Rank() - b.Rank() }) || AssuranceMode("root").Rank() >= Advisory.Rank() {
		t.Fatal("the order is wrong")
	}
}

func FuzzDecoders(f *testing.F) {
	f.Add([]byte(assessment()))
	f.Add([]byte(`{"changeset":{"baseline":{"rev":"r"},"changes":[]},"callSite":"gate"}`))
	f.Add([]byte(`{"paths":["a"]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		lim := Limits{MaxBytes: 1 << 20}
		if a, err := DecodeAssessment(raw, lim); err == nil {
			b, err := Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := DecodeAssessment(b, lim); err != nil {
				t.Fatalf("what was taken does not come back: %v\n%s", err, b)
			}
		}
		_, _ = DecodeInitializeResult(raw, lim)
		_, _ = DecodeProposeResult(raw, lim)
		_, _ = DecodeEvaluateParams(raw, lim)
		_, _ = DecodeApplyParams(raw, lim)
		_, _ = DecodeCheckParams(raw, lim)
		_, _ = DecodeInspectRequest(raw, lim)
		_, _ = DecodeGraph(raw, lim)
		_, _ = DecodeImpact(raw, lim)
		_, _ = DecodeManifest(raw, lim)
		_, _ = DecodeReadBlobParams(raw, lim)
		_, _ = DecodeListTreeParams(raw, lim)
		_, _ = DecodePutBlobParams(raw, lim)
		_, _ = ForbiddenField(raw, true)
	})
}

func FuzzCanonical(f *testing.F) {
	f.Add([]byte(`{"b":[1.5,"\u00e9"],"a":{}}`))
	f.Add([]byte("{\"\U00010000\":1,\"\uffff\":2}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := Canonical(raw)
		if err != nil {
			return
		}
		again, err := Canonical(c)
		if err != nil || string(again) != string(c) {
			t.Fatalf("%q is not stable: %q (%v)", c, again, err)
		}
	})
}
