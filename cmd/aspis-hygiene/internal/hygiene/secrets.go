package hygiene

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/aspis-dev/aspis/schemas"
)

// secrets finds secrets by gitleaks' rules. They are read in the background
// while the host is still shaking hands.
//
// Nothing in the change can silence it: a gitleaks:allow comment does not
// count, and a .gitleaks.toml or .gitleaksignore is a file like any other. In
// other places that gitleaks itself passes over (lock files, vendored code, images)
// the rules for one kind of token still apply, as warnings; the rules that go
// by entropy alone do not, for such files are full of digests.
type secrets struct {
	rules func() (*leakRules, error)
}

func newSecrets() *secrets {
	s := &secrets{rules: sync.OnceValues(loadLeakRules)}
	go func() { _, _ = s.rules() }()
	return s
}

// leak is one match.
type leak struct {
	rule     *leakRule
	from, to int // of the secret, in bytes
	secret   string
	match    string
	line     int
}

// generic reports whether a rule goes by looks alone.
func (r *leakRule) generic() bool { return strings.Contains(r.id, "generic") }

// scan finds the secrets of one text. No message and no fingerprint holds or is
// made from a secret itself.
func (s *secrets) scan(path string, text []byte, l *layout) ([]hit, error) {
	set, err := s.rules()
	if err != nil {
		return nil, err
	}
	var leaks []leak
	for _, c := range set.candidates(text) {
		if r := c.rule; r.path == nil || r.path().MatchString(path) {
			leaks = append(leaks, c.find(path, text, l, set.allow)...)
		}
	}
	if len(leaks) == 0 {
		return nil, nil
	}
	quiet := set.allow.hasPath(path) && !strings.Contains(path, "gitleaks")
	leaks = slices.DeleteFunc(leaks, func(k leak) bool { return (quiet && k.rule.generic()) || allowedPath(path, k.rule.allow) })
	var hits []hit
	for i, k := range leaks {
		if !k.rule.generic() || !better(leaks, i) {
			hits = append(hits, k.hit(path, text, l, quiet))
		}
	}
	return hits, nil
}

// named applies the rules that go by a file's name alone.
func (s *secrets) named(path string) ([]hit, error) {
	set, err := s.rules()
	if err != nil {
		return nil, err
	}
	var hits []hit
	for _, i := range set.byNames {
		if r := &set.rules[i]; r.path().MatchString(path) {
			hits = append(hits, hit{rule: rulePrivateKey, path: path, message: r.description, severity: schemas.SeverityWarning, key: r.id})
		}
	}
	return hits, nil
}

// find applies one rule, with gitleaks' meaning of groups, entropy and
// allow-lists.
func (c candidate) find(path string, text []byte, l *layout, global allowlist) []leak {
	r := c.rule
	var out []leak
	for _, at := range c.matches(text) {
		found := text[at[0]:at[1]]
		match := strings.Trim(string(found), "\n")
		from := at[0] + len(found) - len(bytes.TrimLeft(found, "\n"))
		k := leak{rule: r, from: from, to: from + len(match), secret: match, match: match, line: l.lineOf(from)}
		if !k.group() || (r.entropy != 0 && entropy(k.secret) <= r.entropy) {
			continue
		}
		line := string(text[l.start(k.line):lineEnd(text, k.to)])
		if k.allowed(path, line, global) || slices.ContainsFunc(r.allow, func(a allowlist) bool { return k.allowed(path, line, a) }) {
			continue
		}
		if out = append(out, k); len(out) > maxHits {
			break
		}
	}
	return out
}

// group narrows a match to the group that is the secret.
func (k *leak) group() bool {
	groups := k.rule.regex().FindStringSubmatchIndex(k.match)
	if len(groups) < 4 {
		return true
	}
	pick := k.rule.secretGroup
	if pick == 0 {
		for g := 1; g < len(groups)/2; g++ {
			if groups[2*g] >= 0 && groups[2*g+1] > groups[2*g] {
				pick = g
				break
			}
		}
	}
	if pick == 0 {
		return true
	}
	if 2*pick+1 >= len(groups) || groups[2*pick] < 0 {
		return false
	}
	k.secret = k.match[groups[2*pick]:groups[2*pick+1]]
	k.to = k.from + groups[2*pick+1]
	k.from += groups[2*pick]
	return true
}

func lineEnd(text []byte, at int) int {
	if n := bytes.IndexByte(text[at:], '\n'); n >= 0 {
		return at + n
	}
	return len(text)
}

// allowedPath applies the lists that go by path alone.
func allowedPath(path string, lists []allowlist) bool {
	return slices.ContainsFunc(lists, func(a allowlist) bool {
		return a.hasPath(path) && (!a.all || (a.regexes == nil && len(a.stopWords) == 0))
	})
}

// allowed applies one list to what was found.
func (k *leak) allowed(path, line string, a allowlist) bool {
	target := k.secret
	switch a.target {
	case "match":
		target = k.match
	case "line":
		target = line
	}
	if !a.all {
		return a.hasText(target) || a.hasStopWord(k.secret)
	}
	return (a.paths == nil || a.hasPath(path)) && (a.regexes == nil || a.hasText(target)) && (len(a.stopWords) == 0 || a.hasStopWord(k.secret))
}

// better reports whether a rule for one kind of token found what a generic one
// found too.
func better(leaks []leak, i int) bool {
	for j := range leaks {
		if j != i && !leaks[j].rule.generic() && leaks[j].line == leaks[i].line && strings.Contains(leaks[j].secret, leaks[i].secret) {
			return true
		}
	}
	return false
}

func (k *leak) hit(path string, text []byte, l *layout, quiet bool) hit {
	h := hit{rule: ruleSecret, path: path, place: l.span(k.from, k.to), key: k.rule.id + "\x00" + k.secret}
	if k.rule.id == "private-key" {
		h.rule = rulePrivateKey
	}
	// Published, so made of the line without the secret: a digest of a weak
	// password gives it away.
	line := string(bytes.TrimSpace(l.line(k.line)))
	first, _, _ := strings.Cut(k.secret, "\n")
	h.mark = k.rule.id + "\x00" + strings.ReplaceAll(line, strings.TrimSpace(first), "*")
	h.message = fmt.Sprintf("%s: %s", k.rule.description, redact(k.secret))
	if quiet {
		h.severity = schemas.SeverityWarning
	}
	if bytes.Contains(text[l.start(k.line):lineEnd(text, k.to)], []byte("gitleaks:allow")) {
		h.message += "; its gitleaks:allow does not count here, for a change must not silence its own check"
	}
	return h
}

// redact shows so little of a secret that it is of no use.
func redact(s string) string {
	shown := min(4, len(s)/5)
	return fmt.Sprintf("%s… (%d characters)", strings.ToValidUTF8(s[:shown], ""), utf8.RuneCountInString(s))
}

// entropy is Shannon's, in bits for each byte of the text, as gitleaks counts it.
func entropy(s string) float64 {
	if s == "" {
		return 0
	}
	counts := map[rune]int{}
	for _, r := range s {
		counts[r]++
	}
	sum, per := 0.0, 1/float64(len(s))
	for _, n := range counts {
		f := float64(n) * per
		sum -= f * math.Log2(f)
	}
	return sum
}
