package hygiene

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// anchor is what makes an expression cheap: a part that every match has, and
// that begins with one of the rule's words. Go's engine tries an expression at
// every byte of a text, at up to a microsecond each. Here it is tried where such
// a word stands, which nearly always fails within a few bytes. What is found is
// what the expression finds in the whole text.
type anchor struct {
	// head is the part and what follows it, as far as that is bounded: a long run
	// of letters must not be gone through once for each word in it.
	head    *regexp.Regexp
	headMax int // bytes
	// tail is the part and all that follows it.
	tail *regexp.Regexp
	// offsets tells by word how far into the part the word may stand.
	offsets map[string][]int
	// before and after bound a match around its anchor, in bytes; endless is no
	// bound.
	before, after int
	prefix        prefix
}

// prefix is what stands before the part.
type prefix struct {
	// simple is true when the rest of this describes it.
	simple   bool
	boundary bool // of a word
	// most characters of class may precede, as few as will do.
	class *syntax.Regexp
	most  int
}

const (
	// endless stands for a length without a bound.
	endless = -1
	// longTail is how far a tail without bound is followed, in bytes: farther than
	// any key reaches.
	longTail = 64 << 10
	// manyTails is how many such tails are tried one by one in a text.
	manyTails = 64
)

// newAnchor finds the part, or returns nil when an expression has none.
func newAnchor(pattern string, words []string) *anchor {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil
	}
	parts := flatten(re)
	for k := range parts {
		offsets := wordOffsets(beginnings(parts[k:]), words)
		if offsets == nil {
			continue
		}
		head := boundedHead(parts[k:])
		a := &anchor{headMax: longestOf(head), offsets: offsets, before: longestOf(parts[:k]), after: longestOf(parts[k:]), prefix: newPrefix(parts[:k])}
		if a.head, err = regexp.Compile(`\A(?:` + joined(head) + `)`); err != nil {
			return nil
		}
		if a.tail, err = regexp.Compile(`\A(?:` + joined(parts[k:]) + `)`); err != nil {
			return nil
		}
		return a
	}
	return nil
}

func newPrefix(parts []*syntax.Regexp) prefix {
	switch {
	case len(parts) == 0:
		return prefix{simple: true}
	case len(parts) > 1:
	case parts[0].Op == syntax.OpWordBoundary:
		return prefix{simple: true, boundary: true}
	case parts[0].Op == syntax.OpRepeat && parts[0].Min == 0 && parts[0].Max > 0 && parts[0].Flags&syntax.NonGreedy != 0 &&
		parts[0].Sub[0].Op == syntax.OpCharClass:
		return prefix{simple: true, class: parts[0].Sub[0], most: parts[0].Max}
	}
	return prefix{}
}

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

// holds lists the places at which the head holds when a word of the rule stands
// at a place of a text.
func (a *anchor) holds(text []byte, word string, at int, places []int) []int {
	for _, offset := range a.offsets[word] {
		start := at - offset
		if start >= 0 && a.head.Match(text[start:min(len(text), start+a.headMax+utf8.UTFMax)]) {
			places = append(places, start)
		}
	}
	return places
}

// find lists the matches of the whole expression, given where its head holds.
func (a *anchor) find(text []byte, whole func() *regexp.Regexp, places []int) [][]int {
	slices.Sort(places)
	places = slices.Compact(places)
	if !a.prefix.simple || (a.after == endless && len(places) > manyTails) {
		return a.around(text, whole, places)
	}
	reach := a.after + utf8.UTFMax
	if a.after == endless {
		reach = longTail
	}
	var out [][]int
	done := 0
	for _, at := range places {
		if at < done || (a.prefix.boundary && !boundary(text, at)) {
			continue
		}
		loc := a.tail.FindIndex(text[at:min(len(text), at+reach)])
		if loc == nil {
			continue
		}
		from := at - a.prefix.reach(text[done:at])
		done = at + loc[1]
		out = append(out, []int{from, done})
	}
	return out
}

// reach is how many bytes before a place belong to a match there.
func (p prefix) reach(before []byte) int {
	bytes := 0
	for n := 0; p.class != nil && n < p.most; n++ {
		r, size := utf8.DecodeLastRune(before[:len(before)-bytes])
		if size == 0 || !inClass(p.class.Rune, r) {
			break
		}
		bytes += size
	}
	return bytes
}

func inClass(ranges []rune, r rune) bool {
	for i := 0; i+1 < len(ranges); i += 2 {
		if ranges[i] <= r && r <= ranges[i+1] {
			return true
		}
	}
	return false
}

// boundary is what \b asks for.
func boundary(text []byte, at int) bool {
	word := func(i int) bool {
		if i < 0 || i >= len(text) {
			return false
		}
		c := text[i]
		return c == '_' || ('0' <= c && c <= '9') || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z')
	}
	return word(at-1) != word(at)
}

// around runs the whole expression on the stretches in which matches may lie.
// Stretches that meet are one: a match may begin in either.
func (a *anchor) around(text []byte, whole func() *regexp.Regexp, places []int) [][]int {
	var out [][]int
	for i := 0; i < len(places); {
		from, to := a.stretch(text, places[i])
		for i++; i < len(places); i++ {
			next, end := a.stretch(text, places[i])
			if next > to {
				break
			}
			to = max(to, end)
		}
		for _, loc := range whole().FindAllIndex(text[from:to], -1) {
			out = append(out, []int{from + loc[0], from + loc[1]})
		}
	}
	return out
}

// stretch is where a match with its anchor at a place may lie, and a little
// more, so that what an expression asks of the text beside it is there.
func (a *anchor) stretch(text []byte, at int) (from, to int) {
	to = len(text)
	if a.before != endless {
		from = max(0, at-a.before-utf8.UTFMax)
		for from > 0 && !utf8.RuneStart(text[from]) {
			from--
		}
	}
	if a.after != endless {
		to = min(len(text), at+a.after+utf8.UTFMax)
	}
	return from, to
}
