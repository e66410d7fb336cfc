package hygiene

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"

	"github.com/zricethezav/gitleaks/v8/detect"
)

// written makes a random text that an expression matches, more or less: what is
// compared does not depend on it.
func written(re *syntax.Regexp, r *rand.Rand, b *strings.Builder) {
	times := func(low, high int) {
		if high < 0 {
			high = low + 20
		}
		for range low + r.Intn(high-low+1) {
			written(re.Sub[0], r, b)
		}
	}
	switch re.Op {
	case syntax.OpLiteral:
		text := string(re.Rune)
		if re.Flags&syntax.FoldCase != 0 && r.Intn(2) == 0 {
			text = strings.ToLower(text)
		}
		b.WriteString(text)
	case syntax.OpCharClass:
		for {
			i := 2 * r.Intn(len(re.Rune)/2)
			c := re.Rune[i] + rune(r.Intn(int(min(re.Rune[i+1]-re.Rune[i], 100)+1)))
			if c > 0 && (c < 0x80 || r.Intn(20) == 0) {
				b.WriteRune(c)
				return
			}
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteByte(byte('a' + r.Intn(26)))
	case syntax.OpCapture:
		written(re.Sub[0], r, b)
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			written(sub, r, b)
		}
	case syntax.OpAlternate:
		written(re.Sub[r.Intn(len(re.Sub))], r, b)
	case syntax.OpQuest:
		times(0, 1)
	case syntax.OpStar:
		times(0, 10)
	case syntax.OpPlus:
		times(1, 10)
	case syntax.OpRepeat:
		times(re.Min, re.Max)
	}
}

// TestSecretsAsGitleaksFindsThem compares with gitleaks' own detector: over
// texts made to fit each rule, alone, repeated and run together, and over real
// source files.
func TestSecretsAsGitleaksFindsThem(t *testing.T) {
	d, err := detect.NewDetectorDefaultConfig()
	if err != nil {
		t.Fatal(err)
	}
	d.IgnoreGitleaksAllow = true
	set, err := loadLeakRules()
	if err != nil {
		t.Fatal(err)
	}
	s := &secrets{rules: func() (*leakRules, error) { return set, nil }}
	found := 0
	compareOn := func(path, text string) {
		t.Helper()
		want := []string{}
		//nolint:staticcheck // the method that takes the type's new name comes with v9
		for _, f := range d.Detect(detect.Fragment{Raw: text, FilePath: path}) {
			if f.RuleID != "pkcs12-file" {
				want = append(want, f.RuleID+" "+f.Secret)
			}
		}
		hits, err := s.scan(path, []byte(text), newLayout([]byte(text)))
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, h := range hits {
			got = append(got, strings.ReplaceAll(h.key, "\x00", " "))
		}
		slices.Sort(want)
		slices.Sort(got)
		found += len(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n got %.300q\nwant %.300q\nin %.1500q", path, got, want, text)
		}
	}
	r := rand.New(rand.NewSource(1))
	rounds := 20
	if testing.Short() {
		rounds = 2
	}
	for _, rule := range set.rules {
		if rule.regex == nil {
			continue
		}
		re, err := syntax.Parse(rule.regex().String(), syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		path := "src/app/settings.py"
		for _, p := range []string{"a/values.yaml", "a/main.tf", "a/page.php", "a/nuget.config"} {
			if rule.path != nil && rule.path().MatchString(p) {
				path = p
			}
		}
		// Words that switch the rule on where its expression has none.
		word := ""
		for n, rules := range set.byWord {
			if set.rules[rules[0]].id == rule.id {
				word = set.words[n]
			}
		}
		for range rounds {
			var b strings.Builder
			fmt.Fprintf(&b, "# %s\n", word)
			for range 1 + r.Intn(4) {
				b.WriteString([]string{"", "x = ", "\"", "é ", "\n\n", "key", "api_"}[r.Intn(7)])
				written(re, r, &b)
				b.WriteString([]string{"", "\n", "\"\n", "'", ";", " é", "\r\n"}[r.Intn(7)])
			}
			compareOn(path, b.String())
			if t.Failed() {
				return
			}
		}
	}
	if found < 500 {
		t.Fatalf("the texts held only %d secrets", found)
	}
	files, _ := filepath.Glob("../../../../schemas/*.go")
	more, _ := filepath.Glob("../../../../host/*/*.go")
	for _, name := range append(files, more...) {
		if text, err := os.ReadFile(name); err == nil {
			compareOn("src/"+filepath.Base(name), string(text))
		}
	}
}

// TestEveryRuleIsLoaded guards the reading of gitleaks' file.
func TestEveryRuleIsLoaded(t *testing.T) {
	set, err := loadLeakRules()
	if err != nil {
		t.Fatal(err)
	}
	anchored := 0
	for i := range set.rules {
		if r := &set.rules[i]; r.regex != nil && r.anchor() != nil {
			anchored++
		}
	}
	if len(set.rules) < 200 || anchored < len(set.rules)*9/10 || len(set.byNames) == 0 {
		t.Fatalf("%d rules, %d anchored, %d by name", len(set.rules), anchored, len(set.byNames))
	}
}

func BenchmarkSecrets(b *testing.B) {
	set, err := loadLeakRules()
	if err != nil {
		b.Fatal(err)
	}
	s := &secrets{rules: func() (*leakRules, error) { return set, nil }}
	text, err := os.ReadFile("check.go")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := s.scan("check.go", text, newLayout(text)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLoadRules(b *testing.B) {
	for b.Loop() {
		if _, err := loadLeakRules(); err != nil {
			b.Fatal(err)
		}
	}
}
