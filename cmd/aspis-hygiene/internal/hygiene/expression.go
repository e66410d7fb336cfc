package hygiene

import (
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// flatten takes a concatenation apart, through groups.
func flatten(re *syntax.Regexp) []*syntax.Regexp {
	switch re.Op {
	case syntax.OpCapture:
		return flatten(re.Sub[0])
	case syntax.OpConcat:
		var out []*syntax.Regexp
		for _, sub := range re.Sub {
			out = append(out, flatten(sub)...)
		}
		return out
	}
	return []*syntax.Regexp{re}
}

func joined(parts []*syntax.Regexp) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString("(?:" + p.String() + ")")
	}
	return b.String()
}

// maxHeadPart is how much of a text one part of a head may match, in bytes: a
// short head is tried faster and rules out nearly as much.
const maxHeadPart = 100

// boundedHead keeps parts up to the first that is long or without a bound, and
// of that one what it needs at least.
func boundedHead(parts []*syntax.Regexp) []*syntax.Regexp {
	var out []*syntax.Regexp
	for _, p := range parts {
		if n := longest(p); n == endless || n > maxHeadPart {
			return append(out, leastOf(p)...)
		}
		out = append(out, p)
	}
	return out
}

// leastOf is what a long part begins with at least.
func leastOf(p *syntax.Regexp) []*syntax.Regexp {
	switch {
	case p.Op == syntax.OpCapture || p.Op == syntax.OpConcat:
		return boundedHead(flatten(p))
	case p.Op == syntax.OpPlus && longest(p.Sub[0]) != endless:
		return p.Sub[:1]
	case p.Op == syntax.OpRepeat && p.Min > 0 && longest(p.Sub[0]) != endless:
		n := min(p.Min, maxHeadPart)
		return []*syntax.Regexp{{Op: syntax.OpRepeat, Flags: p.Flags, Min: n, Max: n, Sub: p.Sub}}
	case p.Op == syntax.OpAlternate:
		either := &syntax.Regexp{Op: syntax.OpAlternate, Flags: p.Flags}
		for _, sub := range p.Sub {
			either.Sub = append(either.Sub, &syntax.Regexp{Op: syntax.OpConcat, Flags: p.Flags, Sub: boundedHead(flatten(sub))})
		}
		return []*syntax.Regexp{either}
	}
	return nil
}

// longest is the most bytes that an expression matches.
func longest(re *syntax.Regexp) int {
	times := func(n, each int) int {
		if each == endless || n < 0 {
			return endless
		}
		return n * each
	}
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase != 0 {
			return utf8.UTFMax * len(re.Rune)
		}
		return len(string(re.Rune))
	case syntax.OpCharClass:
		if n := len(re.Rune); n > 0 && re.Rune[n-1] < utf8.RuneSelf {
			return 1
		}
		return utf8.UTFMax
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return utf8.UTFMax
	case syntax.OpCapture, syntax.OpQuest:
		return longest(re.Sub[0])
	case syntax.OpRepeat:
		return times(re.Max, longest(re.Sub[0]))
	case syntax.OpConcat:
		return longestOf(re.Sub)
	case syntax.OpAlternate:
		most := 0
		for _, sub := range re.Sub {
			n := longest(sub)
			if n == endless {
				return endless
			}
			most = max(most, n)
		}
		return most
	case syntax.OpStar, syntax.OpPlus:
		return endless
	}
	return 0 // assertions and the empty expression
}

func longestOf(parts []*syntax.Regexp) int {
	sum := 0
	for _, p := range parts {
		n := longest(p)
		if n == endless {
			return endless
		}
		sum += n
	}
	return sum
}

// beginning is how a match may begin, in lower case; whole is false when more
// follows that is not known.
type beginning struct {
	text  string
	whole bool
}

const (
	maxBeginnings = 128
	maxClass      = 8 // runes of a class that are told apart
)

var unknown = []beginning{{}}

// beginnings lists how a concatenation may begin, as far as it is known.
func beginnings(parts []*syntax.Regexp) []beginning {
	out := []beginning{{whole: true}}
	for _, p := range parts {
		if !slices.ContainsFunc(out, func(b beginning) bool { return b.whole }) {
			return out
		}
		next := beginningsOf(p)
		var longer []beginning
		for _, b := range out {
			if !b.whole {
				longer = append(longer, b)
				continue
			}
			for _, n := range next {
				longer = append(longer, beginning{b.text + n.text, n.whole})
			}
		}
		if len(longer) > maxBeginnings {
			for i := range out {
				out[i].whole = false
			}
			return out
		}
		out = longer
	}
	return out
}

func beginningsOf(re *syntax.Regexp) []beginning {
	switch re.Op {
	case syntax.OpLiteral:
		return []beginning{{strings.ToLower(string(re.Rune)), true}}
	case syntax.OpCharClass:
		return classBeginnings(re.Rune)
	case syntax.OpCapture:
		return beginningsOf(re.Sub[0])
	case syntax.OpConcat:
		return beginnings(re.Sub)
	case syntax.OpQuest:
		return append([]beginning{{whole: true}}, beginningsOf(re.Sub[0])...)
	case syntax.OpAlternate:
		var out []beginning
		for _, sub := range re.Sub {
			out = append(out, beginningsOf(sub)...)
		}
		if len(out) > maxBeginnings {
			return unknown
		}
		return out
	case syntax.OpPlus:
		return cut(beginningsOf(re.Sub[0]))
	case syntax.OpRepeat:
		if re.Min > 0 {
			return cut(beginningsOf(re.Sub[0]))
		}
	case syntax.OpEmptyMatch:
		return []beginning{{whole: true}}
	}
	// Assertions too: the part is tried without the text before it, of which one
	// at its beginning would speak.
	return unknown
}

func cut(list []beginning) []beginning {
	out := slices.Clone(list)
	for i := range out {
		out[i].whole = false
	}
	return out
}

func classBeginnings(ranges []rune) []beginning {
	var out []beginning
	for i := 0; i+1 < len(ranges); i += 2 {
		for r := ranges[i]; r <= ranges[i+1]; r++ {
			b := beginning{string(unicode.ToLower(r)), true}
			if !slices.Contains(out, b) {
				out = append(out, b)
			}
			if len(out) > maxClass {
				return unknown
			}
		}
	}
	return out
}

// wordOffsets tells where words stand in beginnings; nil when one beginning has
// none, for then a match may be without.
func wordOffsets(list []beginning, words []string) map[string][]int {
	out := map[string][]int{}
	for _, b := range list {
		found := false
		for _, w := range words {
			for at := 0; ; at++ {
				n := strings.Index(b.text[at:], w)
				if n < 0 {
					break
				}
				at += n
				found = true
				if !slices.Contains(out[w], at) {
					out[w] = append(out[w], at)
				}
			}
		}
		if !found {
			return nil
		}
	}
	return out
}
