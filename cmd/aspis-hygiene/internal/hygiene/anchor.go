package hygiene

import (
	"regexp"
	"regexp/syntax"
	"slices"
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
