package policy

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/aspis-dev/aspis/schemas"
)

const (
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func pin(id, digest string) schemas.PinnedProvider {
	return schemas.PinnedProvider{ID: id, Version: "1", Identity: "local:" + id, Integrity: digest, Conformance: "unproven"}
}

func requirement(id string, modes []schemas.AssuranceMode, pins ...schemas.PinnedProvider) schemas.Requirement {
	return schemas.Requirement{ID: id, Capabilities: []schemas.CapabilityFamily{schemas.Check}, Assurance: modes,
		Authority: schemas.RequirementAuthority{Providers: pins}}
}

func gates(required, optional []string) schemas.PolicyGates {
	if required == nil {
		required = []string{}
	}
	if optional == nil {
		optional = []string{}
	}
	g := schemas.PolicyGate{RequiredRequirements: required, OptionalRequirements: optional}
	return schemas.PolicyGates{Interactive: g, Gate: g, Sweep: g}
}

var isolatedOnly = []schemas.AssuranceMode{schemas.Isolated}

func repository(reqs []schemas.Requirement, g schemas.PolicyGates) *schemas.RepositoryPolicy {
	return &schemas.RepositoryPolicy{ASPVersion: "asp/1.0", Requirements: reqs, Gates: g, Policy: schemas.PolicyRules{
		AuthorityModel: "explicit-pinned-provider", PolicyChangeActivation: "base-policy-two-phase",
		CandidatePolicyAuthority: "trusted-base-or-organization-floor",
		MissingHost:              schemas.MissingHost{Interactive: "warn-open", Gate: "fail-closed", Sweep: "fail-closed"}}}
}

func text(t testing.TB, v any) []byte {
	t.Helper()
	b, err := schemas.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func config() *Config {
	g := gates([]string{"lint"}, nil)
	return &Config{Version: ConfigVersion,
		Providers:    []Provider{{ID: "linter", Version: "1", Executable: "/opt/linter", Digest: digestA, Capabilities: []schemas.CapabilityFamily{schemas.Check}}},
		Requirements: []schemas.Requirement{requirement("lint", isolatedOnly, pin("linter", digestA))},
		Gates:        &g,
		Grants:       []Grant{{Requirement: "lint", CallSites: []schemas.CallSite{schemas.Gate}, Provider: "linter", Version: "1", Integrity: digestA}},
	}
}

func compose(t testing.TB, l Layers) *Effective {
	t.Helper()
	e, err := Compose(l)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestGrantNeedsConfigurationAndPin(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		site   schemas.CallSite
		want   bool
	}{
		"granted and pinned":      {func(*Config) {}, schemas.Gate, true},
		"other call-site":         {func(*Config) {}, schemas.Sweep, false},
		"no grant":                {func(c *Config) { c.Grants = nil }, schemas.Gate, false},
		"no pin":                  {func(c *Config) { c.Requirements[0].Authority.Providers[0].ID = "other" }, schemas.Gate, false},
		"pin of other build":      {func(c *Config) { c.Requirements[0].Authority.Providers[0].Integrity = digestB }, schemas.Gate, false},
		"grant of other build":    {func(c *Config) { c.Grants[0].Integrity = digestB }, schemas.Gate, false},
		"installed other build":   {func(c *Config) { c.Providers[0].Digest = digestB }, schemas.Gate, false},
		"installed other version": {func(c *Config) { c.Providers[0].Version = "2" }, schemas.Gate, false},
		"pinned identity differs": {func(c *Config) { c.Providers[0].Identity = "someone" }, schemas.Gate, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := config()
			tc.change(c)
			e := compose(t, Layers{Config: c})
			required, _ := e.Requirements(tc.site)
			g := e.Grant(required[0], tc.site, c.Providers[0])
			if g.Granted != tc.want || (g.Why == "") != tc.want {
				t.Fatalf("%+v", g)
			}
		})
	}
}

// TestRepositoryGrantsNothing: a repository can require and pin, but without a
// grant in trusted configuration nobody has authority.
func TestRepositoryGrantsNothing(t *testing.T) {
	e := compose(t, Layers{Config: config(), Repository: repository(
		[]schemas.Requirement{requirement("own", isolatedOnly, pin("linter", digestA))}, gates([]string{"own"}, nil))})
	required, _ := e.Requirements(schemas.Gate)
	if len(required) != 2 {
		t.Fatalf("%+v", required)
	}
	for _, r := range required {
		if g := e.Grant(r, schemas.Gate, e.Providers()[0]); g.Granted != (r.ID == "lint") {
			t.Fatalf("%s: %+v", r.ID, g)
		}
	}
}

// TestRepositoryCanOnlyNarrow redefines a requirement with weaker terms.
func TestRepositoryCanOnlyNarrow(t *testing.T) {
	weak := requirement("lint", []schemas.AssuranceMode{schemas.Advisory}, pin("linter", digestA), pin("evil", digestB))
	e := compose(t, Layers{Config: config(), Repository: repository([]schemas.Requirement{weak}, gates(nil, []string{"lint"}))})
	required, optional := e.Requirements(schemas.Gate)
	if len(required) != 1 || len(optional) != 0 {
		t.Fatal("a required requirement became optional")
	}
	if required[0].Accepts(schemas.MediatedWrite) || !required[0].Accepts(schemas.Isolated) {
		t.Fatal("the mode was weakened")
	}
	evil := Provider{ID: "evil", Version: "1", Digest: digestB}
	if e.Grant(required[0], schemas.Gate, evil).Granted {
		t.Fatal("the repository granted its own provider")
	}
}

func TestBudgetCanOnlyBeLoweredByRepository(t *testing.T) {
	c := config()
	ms := func(n int) *int { return &n }
	c.Budgets = &schemas.PolicyBudgets{GateMs: ms(1000)}
	r := repository([]schemas.Requirement{requirement("x", isolatedOnly, pin("linter", digestA))}, gates(nil, nil))
	for repo, want := range map[int]int64{500: 500, 5000: 1000} {
		r.Budgets = &schemas.PolicyBudgets{GateMs: ms(repo)}
		if got := compose(t, Layers{Config: c, Repository: r}).Budget(schemas.Gate).Milliseconds(); got != want {
			t.Fatalf("%d gave %d", repo, got)
		}
	}
}

func TestFailPolicyTable(t *testing.T) {
	for _, class := range []schemas.FailClass{schemas.FailHealth, schemas.FailContract, schemas.FailPolicy, schemas.FailInput, "unknown"} {
		for _, site := range append(schemas.CallSites[:], "unknown") {
			want := class == schemas.FailHealth && (site == schemas.Interactive || site == schemas.Sweep)
			if FailsOpen(class, site) != want {
				t.Errorf("%s at %s", class, site)
			}
		}
	}
}

func TestErrorsNameThePlace(t *testing.T) {
	good := string(text(t, repository([]schemas.Requirement{requirement("r", isolatedOnly, pin("p", digestA))}, gates([]string{"r"}, nil))))
	for name, tc := range map[string]struct{ from, to, want string }{
		"launch":      {`"aspVersion"`, "\n\n  \"command\": [\"sh\"], \"aspVersion\"", "asp.json:3:3: /command"},
		"deep launch": {`"version":"1"`, `"version":"1","executable":"/bin/sh"`, "/requirements/0/authority/providers/0/executable"},
		"host":        {`"gates":`, `"requiredHost":"x","gates":`, "/requiredHost"},
		"unknown":     {`"gates":`, `"surprise":1,"gates":`, "/surprise"},
		"doubled":     {`"gates":`, `"aspVersion":"asp/1.0","gates":`, "duplicate"},
		"version":     {`asp/1.0`, `asp/2.0`, "/aspVersion is \"asp/2.0\""},
		"undefined":   {`"requiredRequirements":["r"]`, `"requiredRequirements":["q"]`, "not defined"},
		"gate open":   {`"gate":"fail-closed"`, `"gate":"warn-open"`, "always fail-closed"},
		"mode":        {`["isolated"]`, `["very"]`, "/requirements/0/assurance/0"},
		"digest":      {digestA, "sha256:1", "/integrity"},
		"missing":     {`"authorityModel":"explicit-pinned-provider",`, ``, "authorityModel"},
		"cut short":   {`}}}`, ``, "asp.json"},
	} {
		t.Run(name, func(t *testing.T) {
			raw := strings.Replace(good, tc.from, tc.to, 1)
			if raw == good {
				t.Fatal("nothing was changed")
			}
			_, err := ParseRepository("asp.json", []byte(raw))
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), tc.want) || e.Line == 0 {
				t.Fatalf("%v, want %s", err, tc.want)
			}
		})
	}
	if _, err := ParseRepository("asp.json", []byte(good)); err != nil {
		t.Fatal(err)
	}
}

func TestTrustedFilesMustBeOurs(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	write := func(mode os.FileMode) {
		os.Remove(path)
		if err := os.WriteFile(path, text(t, config()), mode); err != nil {
			t.Fatal(err)
		}
		os.Chmod(path, mode)
	}
	write(0o644)
	if _, err := Load(Sources{ConfigPath: path}); err != nil {
		t.Fatal(err)
	}
	write(0o666)
	if _, err := Load(Sources{ConfigPath: path}); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Fatal(err)
	}
	write(0o644)
	os.Chmod(dir, 0o777)
	if _, err := Load(Sources{ConfigPath: path}); err == nil {
		t.Fatal("a directory that all can write was taken")
	}
	os.Chmod(dir, 0o755)
	if os.Geteuid() == 0 {
		os.Chown(path, 12345, 12345)
		if _, err := Load(Sources{ConfigPath: path}); err == nil || !strings.Contains(err.Error(), "12345") {
			t.Fatal(err)
		}
	}
	os.Remove(path)
	if _, err := Load(Sources{ConfigPath: path}); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

func TestSelfAuthorizationIsFoundByMeaning(t *testing.T) {
	base := func() *schemas.RepositoryPolicy {
		return repository([]schemas.Requirement{requirement("r", isolatedOnly, pin("linter", digestA))}, gates([]string{"r"}, nil))
	}
	trusted := compose(t, Layers{Config: config()})
	for name, tc := range map[string]struct {
		change func(*schemas.RepositoryPolicy) *schemas.RepositoryPolicy
		want   string // kind of weakening; "" for none
	}{
		"nothing": {func(p *schemas.RepositoryPolicy) *schemas.RepositoryPolicy { return p }, ""},
		"removed": {func(*schemas.RepositoryPolicy) *schemas.RepositoryPolicy { return nil }, "policy-removed"},
		"own provider": {func(p *schemas.RepositoryPolicy) *schemas.RepositoryPolicy {
			p.Requirements[0].Authority.Providers = append(p.Requirements[0].Authority.Providers, pin("evil", digestB))
			return p
		}, "provider-authorized"},
		"other build": {func(p *schemas.RepositoryPolicy) *schemas.RepositoryPolicy {
			p.Requirements[0].Authority.Providers[0].Integrity = digestB
			return p
		}, "provider-authorized"},
		"lower mode": {func(p *schemas.RepositoryPolicy) *schemas.RepositoryPolicy {
			p.Requirements[0].Assurance = []schemas.AssuranceMode{schemas.Isolated, schemas.Gated}
			return p
		}, "assurance-lowered"},
		"not required": {func(p *schemas.RepositoryPolicy) *schemas.RepositoryPolicy {
			p.Gates.Gate.RequiredRequirements = []string{}
			return p
		}, "gate-weakened"},
		"optional now": {func(p *schemas.RepositoryPolicy) *schemas.RepositoryPolicy {
			p.Gates = gates(nil, []string{"r"})
			return p
		}, "gate-weakened"},
		"renamed": {func(p *schemas.RepositoryPolicy) *schemas.RepositoryPolicy {
			p.Requirements[0].ID = "s"
			p.Gates = gates([]string{"s"}, nil)
			return p
		}, "requirement-removed"},
		"missing host": {func(p *schemas.RepositoryPolicy) *schemas.RepositoryPolicy {
			p.Policy.MissingHost.Sweep = "warn-open"
			return p
		}, "missing-host-weakened"},
		"stricter": {func(p *schemas.RepositoryPolicy) *schemas.RepositoryPolicy {
			p.Policy.MissingHost.Interactive = "fail-closed"
			p.Requirements = append(p.Requirements, requirement("more", isolatedOnly, pin("linter", digestA)))
			p.Gates = gates([]string{"more", "r"}, nil)
			return p
		}, ""},
		"new judge": {func(p *schemas.RepositoryPolicy) *schemas.RepositoryPolicy {
			p.Requirements = append(p.Requirements, requirement("more", isolatedOnly, pin("evil", digestB)))
			return p
		}, "provider-authorized"},
	} {
		t.Run(name, func(t *testing.T) {
			weak := Weakenings(Compare(base(), tc.change(base()), trusted))
			if (len(weak) > 0) != (tc.want != "") || (tc.want != "" && weak[0].Kind != tc.want) {
				t.Fatalf("%+v, want %q", weak, tc.want)
			}
		})
	}
	first := repository([]schemas.Requirement{requirement("r", isolatedOnly, pin("linter", digestA))}, gates([]string{"r"}, nil))
	if weak := Weakenings(Compare(nil, first, trusted)); len(weak) != 0 {
		t.Fatalf("a first policy that pins a granted provider: %+v", weak)
	}
}

func TestCandidateDecidesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	if err := os.WriteFile(path, text(t, config()), 0o600); err != nil {
		t.Fatal(err)
	}
	base := text(t, repository([]schemas.Requirement{requirement("r", isolatedOnly, pin("linter", digestA))}, gates([]string{"r"}, nil)))
	cand := text(t, repository([]schemas.Requirement{requirement("r", []schemas.AssuranceMode{schemas.Advisory}, pin("evil", digestB))}, gates(nil, nil)))
	without, err := Load(Sources{ConfigPath: path, Repository: base})
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Sources{
		"weaker":    {ConfigPath: path, Repository: base, Candidate: cand},
		"malformed": {ConfigPath: path, Repository: base, Candidate: []byte("{")},
		"gone":      {ConfigPath: path, Repository: base, CandidateGone: true},
	} {
		e, err := Load(s)
		if err != nil {
			t.Fatal(name, err)
		}
		if e.Digest() != without.Digest() {
			t.Errorf("%s: the candidate changed the policy", name)
		}
		if weak, pending := e.Pending(); len(weak) == 0 || !pending {
			t.Errorf("%s: nothing is reported", name)
		}
	}
}

func TestDigestIsOfTheMeaning(t *testing.T) {
	one := config()
	one.Requirements = append(one.Requirements, requirement("b", isolatedOnly, pin("linter", digestA), pin("other", digestB)))
	two := config()
	two.Requirements = []schemas.Requirement{requirement("b", isolatedOnly, pin("other", digestB), pin("linter", digestA)), two.Requirements[0]}
	if compose(t, Layers{Config: one}).Digest() != compose(t, Layers{Config: two}).Digest() {
		t.Fatal("order changes the digest")
	}
	// The same text with its members in another order and other white space.
	var v any
	if err := json.Unmarshal(text(t, one), &v); err != nil {
		t.Fatal(err)
	}
	indented, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseConfig("c", indented)
	if err != nil {
		t.Fatal(err)
	}
	if compose(t, Layers{Config: one}).Digest() != compose(t, Layers{Config: again}).Digest() {
		t.Fatal("format changes the digest")
	}
	two.Grants = nil
	if compose(t, Layers{Config: one}).Digest() == compose(t, Layers{Config: two}).Digest() {
		t.Fatal("a missing grant does not change the digest")
	}
}

// TestFloorIsNeverWeakened draws arbitrary lower layers over a floor.
func TestFloorIsNeverWeakened(t *testing.T) {
	floor := &Floor{Version: FloorVersion, Requirements: []schemas.Requirement{requirement("floor", isolatedOnly, pin("linter", digestA))}, Gates: gates([]string{"floor"}, nil)}
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(label string) ([]schemas.Requirement, schemas.PolicyGates) {
			var reqs []schemas.Requirement
			var ids []string
			for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"floor", "a", "b"}), 1, 3, rapid.ID).Draw(rt, label) {
				modes := rapid.SliceOfNDistinct(rapid.SampledFrom(schemas.AssuranceModes[:]), 1, 4, rapid.ID).Draw(rt, "modes")
				reqs = append(reqs, requirement(id, modes, pin(rapid.SampledFrom([]string{"linter", "evil"}).Draw(rt, "pin"), rapid.SampledFrom([]string{digestA, digestB}).Draw(rt, "digest"))))
				ids = append(ids, id)
			}
			cutAt := rapid.IntRange(0, len(ids)).Draw(rt, "required")
			return reqs, gates(ids[:cutAt], ids[cutAt:])
		}
		c := config()
		var g schemas.PolicyGates
		c.Requirements, g = draw("config")
		c.Gates = &g
		c.Providers = append(c.Providers, Provider{ID: "evil", Version: "1", Digest: digestB})
		for _, p := range []string{"linter", "evil"} {
			for _, d := range []string{digestA, digestB} {
				c.Grants = append(c.Grants, Grant{Requirement: "floor", CallSites: schemas.CallSites[:], Provider: p, Version: "1", Integrity: d})
			}
		}
		l := Layers{Floor: floor, Config: c}
		if rapid.Bool().Draw(rt, "repository") {
			reqs, g := draw("repo")
			l.Repository = repository(reqs, g)
		}
		e := compose(t, l)
		for _, site := range schemas.CallSites {
			required, _ := e.Requirements(site)
			found := false
			for _, r := range required {
				if r.ID != "floor" {
					continue
				}
				found = true
				for _, m := range []schemas.AssuranceMode{schemas.Advisory, schemas.Gated, schemas.MediatedWrite} {
					if r.Accepts(m) {
						rt.Fatalf("the floor's requirement accepts %s", m)
					}
				}
				if e.Grant(r, site, Provider{ID: "evil", Version: "1", Digest: digestB}).Granted {
					rt.Fatal("somebody whom the floor does not pin has authority")
				}
			}
			if !found {
				rt.Fatalf("the floor's requirement is not required at %s", site)
			}
		}
	})
}

func TestLocalOverrideHasNoAuthority(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	if err := os.WriteFile(path, text(t, config()), 0o600); err != nil {
		t.Fatal(err)
	}
	plain, err := Load(Sources{ConfigPath: path})
	if err != nil {
		t.Fatal(err)
	}
	for _, local := range []string{`{}`, `{"gates":{}}`, `not json`, `{"deep":{"authority":true}}`} {
		e, err := Load(Sources{ConfigPath: path, Local: []byte(local)})
		if err != nil {
			t.Fatal(err)
		}
		o := e.LocalOverride()
		if e.Digest() != plain.Digest() || o == nil || o.AuthorityEffect != "none" || (o.Detail == "") != (local == `{}`) {
			t.Fatalf("%s: %+v", local, o)
		}
	}
}

func FuzzParsers(f *testing.F) {
	f.Add([]byte(`{"aspVersion":"asp/1.0"}`))
	f.Add([]byte(`{"version":"aspis-config/1","providers":[{"id":"x"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if p, err := ParseRepository("f", raw); err == nil {
			if found := strings.Contains(string(raw), `"command"`) && len(p.Requirements) == 0; found {
				t.Fatal("a policy with a command was taken")
			}
		}
		if c, err := ParseConfig("f", raw); err == nil {
			if _, err := Compose(Layers{Config: c}); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = ParseFloor("f", raw)
		_ = localOverride(raw)
	})
}
