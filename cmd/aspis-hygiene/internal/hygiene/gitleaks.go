package hygiene

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	ahocorasick "github.com/BobuSumisu/aho-corasick"
	"github.com/BurntSushi/toml"
	"github.com/zricethezav/gitleaks/v8/config"
)

// ruleFile is gitleaks' own set of rules as far as it is used here. Loading it
// by gitleaks' loader compiles every expression, which takes longer than a
// whole check; here an expression is compiled when a text has one of its words.
type ruleFile struct {
	Allowlist allowText `toml:"allowlist"`
	Rules     []struct {
		ID          string      `toml:"id"`
		Description string      `toml:"description"`
		Path        string      `toml:"path"`
		Regex       string      `toml:"regex"`
		SecretGroup int         `toml:"secretGroup"`
		Entropy     float64     `toml:"entropy"`
		Keywords    []string    `toml:"keywords"`
		Allowlists  []allowText `toml:"allowlists"`
	} `toml:"rules"`
}

// allowText is an allow-list before it is compiled.
type allowText struct {
	Description string   `toml:"description"`
	Condition   string   `toml:"condition"`
	Paths       []string `toml:"paths"`
	RegexTarget string   `toml:"regexTarget"`
	Regexes     []string `toml:"regexes"`
	StopWords   []string `toml:"stopwords"`
}

// leakRule is one rule; what needs compiling is compiled once, at first use.
type leakRule struct {
	id, description string
	secretGroup     int
	entropy         float64
	regex, path     func() *regexp.Regexp // nil when the rule has none
	anchor          func() *anchor
	allow           []allowlist
}

// leakRules is the whole set with its prefilter.
type leakRules struct {
	rules   []leakRule
	words   []string
	trie    *ahocorasick.Trie
	byWord  [][]int // rules by the number of a word
	byNames []int   // rules that go by a file's name alone
	allow   allowlist
}

// loadLeakRules reads the rules that are built into gitleaks. A member that is
// not known here would change what a rule means, and is an error.
func loadLeakRules() (*leakRules, error) {
	var file ruleFile
	meta, err := toml.Decode(config.DefaultConfig, &file)
	if err != nil {
		return nil, fmt.Errorf("read gitleaks' rules: %w", err)
	}
	for _, key := range meta.Undecoded() {
		if name := key.String(); name != "title" && name != "minVersion" {
			return nil, fmt.Errorf("read gitleaks' rules: %s is not known", name)
		}
	}
	if len(file.Rules) == 0 {
		return nil, fmt.Errorf("read gitleaks' rules: there are none")
	}
	set := &leakRules{allow: newAllowlist(file.Allowlist)}
	number := map[string]int{}
	for i, r := range file.Rules {
		switch {
		case r.Regex == "" && r.Path != "":
			set.byNames = append(set.byNames, i)
		case len(r.Keywords) == 0:
			return nil, fmt.Errorf("read gitleaks' rules: %s has no keywords", r.ID)
		}
		var words []string
		for _, word := range r.Keywords {
			word = strings.ToLower(word)
			if len(word) > maxWord {
				return nil, fmt.Errorf("read gitleaks' rules: a keyword of %s is too long", r.ID)
			}
			words = append(words, word)
			n, ok := number[word]
			if !ok {
				n = len(set.words)
				number[word] = n
				set.words = append(set.words, word)
				set.byWord = append(set.byWord, nil)
			}
			set.byWord[n] = append(set.byWord[n], i)
		}
		rule := leakRule{id: r.ID, description: strings.TrimSuffix(r.Description, "."), secretGroup: r.SecretGroup,
			entropy: r.Entropy, regex: lazily(r.Regex), path: lazily(r.Path),
			anchor: sync.OnceValue(func() *anchor { return newAnchor(r.Regex, words) })}
		for _, t := range r.Allowlists {
			rule.allow = append(rule.allow, newAllowlist(t))
		}
		set.rules = append(set.rules, rule)
	}
	set.trie = ahocorasick.NewTrieBuilder().AddStrings(set.words).Build()
	return set, nil
}

func lazily(pattern string) func() *regexp.Regexp {
	if pattern == "" {
		return nil
	}
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// allowlist tells what a rule does not mean.
type allowlist struct {
	all            bool // every criterion must hold, not just one
	target         string
	paths, regexes func() *regexp.Regexp // nil when there are none
	stopWords      []string              // in lower case
}

func newAllowlist(t allowText) allowlist {
	a := allowlist{target: t.RegexTarget, paths: lazily(either(t.Paths)), regexes: lazily(either(t.Regexes))}
	c := strings.ToUpper(t.Condition)
	a.all = c == "AND" || c == "&&"
	for _, w := range t.StopWords {
		a.stopWords = append(a.stopWords, strings.ToLower(w))
	}
	return a
}

// either joins expressions into one.
func either(patterns []string) string {
	if len(patterns) == 0 {
		return ""
	}
	return "(?:" + strings.Join(patterns, "|") + ")"
}

func (a allowlist) hasPath(path string) bool {
	return a.paths != nil && path != "" && a.paths().MatchString(path)
}

func (a allowlist) hasText(text string) bool {
	return a.regexes != nil && text != "" && a.regexes().MatchString(text)
}

func (a allowlist) hasStopWord(secret string) bool {
	secret = strings.ToLower(secret)
	return slices.ContainsFunc(a.stopWords, func(w string) bool { return strings.Contains(secret, w) })
}

const (
	// prefilterChunk is how much is put into lower case at a time, in bytes.
	prefilterChunk = 64 << 10
	// maxWord bounds a keyword, in bytes; chunks overlap by as much.
	maxWord = 64
)

// candidate is a rule whose words a text has, and the places at which the
// rule's anchor holds; a rule without an anchor has none.
type candidate struct {
	rule   *leakRule
	places []int
}

// candidates lists the rules that a text may break, in their order.
func (s *leakRules) candidates(text []byte) []candidate {
	places := make(map[int][]int)
	lower := make([]byte, 0, min(len(text), prefilterChunk))
	for base := 0; ; base += prefilterChunk - maxWord {
		end := min(len(text), base+prefilterChunk)
		lower = lower[:0]
		for _, c := range text[base:end] {
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			lower = append(lower, c)
		}
		s.trie.Walk(lower, func(last, length, word int64) bool {
			for _, i := range s.byWord[word] {
				a := s.rules[i].anchor()
				if a == nil {
					places[i] = []int{}
				} else if list := a.holds(text, s.words[word], base+int(last-length)+1, places[i]); list != nil {
					places[i] = list
				}
			}
			return true
		})
		if end == len(text) {
			break
		}
	}
	var out []candidate
	for i := range s.rules {
		if places[i] != nil {
			out = append(out, candidate{&s.rules[i], places[i]})
		}
	}
	return out
}

// matches finds what the rule's expression matches.
func (c candidate) matches(text []byte) [][]int {
	if a := c.rule.anchor(); a != nil {
		return a.find(text, c.rule.regex, c.places)
	}
	return c.rule.regex().FindAllIndex(text, -1)
}
