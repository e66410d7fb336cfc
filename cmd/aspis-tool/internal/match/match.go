package match

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// Item is one finding on one side of a change.
type Item struct {
	Rule, Message string
	Path          string
	// Home is the path that the file had before the change; for a finding before
	// it, its own.
	Home  string
	Place Place
	// Text is the file; nil where it could not be read, and the finding is then
	// taken to be about the file as a whole.
	Text *Text

	core     string // names its tokens
	says     string // rule and message without positions
	from, to int    // its tokens, in the file's own count; while pairing, in the stream's
}

// positions in messages: "x.go:12:3", "line 12", "lines 3-4", "column 7", "12:3".
var positions = regexp.MustCompile(`(?i)(:\d+)+\b|\b(lines?|columns?|cols?|row|offset)[ :#]*\d+([ -]+(to )?\d+)?|\b\d+:\d+\b`)

// withoutName takes a file's own name out of a message, where it stands alone.
func withoutName(message, name string) string {
	if name == "" {
		return message
	}
	part := func(c byte) bool { return wordByte(c) || c == '-' || c == '/' }
	var b strings.Builder
	for {
		i := strings.Index(message, name)
		if i < 0 {
			b.WriteString(message)
			return b.String()
		}
		end := i + len(name)
		b.WriteString(message[:i])
		if (i > 0 && part(message[i-1])) || (end < len(message) && part(message[end])) {
			b.WriteString(name)
		} else {
			b.WriteString("{file}")
		}
		message = message[end:]
	}
}

func (it *Item) prepare() {
	message := withoutName(it.Message, it.Path)
	message = positions.ReplaceAllString(strings.Join(strings.Fields(message), " "), "#")
	it.says = it.Rule + "\x00" + message
	if it.Text == nil || !it.Place.Known {
		it.core, it.from, it.to = "file\x00"+it.Home, 0, 0
		return
	}
	it.from, it.to = it.Text.core(it.Place)
	it.core = it.Text.name(it.from, it.to)
}

// Result says of each finding after a change whether it was there before, and
// of each before it whether it is still there.
type Result struct{ Old, Still []bool }

// Compare pairs findings off, each with one at most.
func Compare(before, after []Item) Result {
	r := Result{Old: make([]bool, len(after)), Still: make([]bool, len(before))}
	for i := range before {
		before[i].prepare()
	}
	for i := range after {
		after[i].prepare()
	}
	p := &pairing{before: before, after: after, r: r, bySays: map[string][]int{}}
	p.aligned()
	p.equal(func(it *Item) string { return it.Home })
	p.equal(func(*Item) string { return "" })
	return p.r
}

type pairing struct {
	before, after []Item
	r             Result
	bySays        map[string][]int
}

func (p *pairing) take(a, b int) { p.r.Old[a], p.r.Still[b] = true, true }

// equal pairs what says the same of the same tokens at the same where.
func (p *pairing) equal(where func(*Item) string) {
	free := map[string][]int{}
	for i := range p.before {
		if it := &p.before[i]; !p.r.Still[i] {
			key := it.says + "\x00" + where(it) + "\x00" + it.core
			free[key] = append(free[key], i)
		}
	}
	for i := range p.after {
		it := &p.after[i]
		key := it.says + "\x00" + where(it) + "\x00" + it.core
		if list := free[key]; !p.r.Old[i] && len(list) > 0 {
			p.take(i, list[0])
			free[key] = list[1:]
		}
	}
}

// aligned pairs what says the same of tokens that are aligned throughout.
func (p *pairing) aligned() {
	filesA, filesB := texts(p.after), texts(p.before)
	total := 0
	for _, files := range []map[string]*Text{filesA, filesB} {
		for _, t := range files {
			total += len(t.tokens)
		}
	}
	if total > maxTokens {
		return
	}
	intern := map[string]int32{}
	a := newStream(filesA, sorted(filesA), intern)
	b := newStream(filesB, sorted(filesB), intern)
	homes := map[string]string{}
	for i := range p.after {
		homes[p.after[i].Path] = p.after[i].Home
	}
	align(a, b, func(name string) string { return homes[name] })
	p.index(b)
	a.sum()
	b.sum()
	// The very same range first: of two findings on one line each keeps its own.
	for _, exact := range []bool{true, false} {
		for i := range p.after {
			if p.r.Old[i] || p.after[i].from == p.after[i].to {
				continue
			}
			if j := p.counterpart(a, b, i, exact); j >= 0 {
				p.take(i, j)
			}
		}
	}
}

// index sorts the findings before the change that say the same by where they
// begin.
func (p *pairing) index(b *stream) {
	for i := range p.before {
		it := &p.before[i]
		if it.from == it.to {
			continue
		}
		at := b.begin[it.Path]
		it.from, it.to = at+it.from, at+it.to
		p.bySays[it.says] = append(p.bySays[it.says], i)
	}
	for _, list := range p.bySays {
		slices.SortStableFunc(list, func(x, y int) int { return cmp.Compare(p.before[x].from, p.before[y].from) })
	}
}

// maxLooks bounds the findings that one is compared with.
const maxLooks = 64

// counterpart finds the free finding before the change that a finding after it
// is, or -1.
func (p *pairing) counterpart(a, b *stream, i int, exact bool) int {
	it := &p.after[i]
	start := a.begin[it.Path]
	if !a.run(start+it.from, start+it.to) {
		return -1
	}
	lo := int(a.to[start+it.from])
	hi := lo + it.to - it.from
	list := p.bySays[it.says]
	// Of those that begin before the end of it, the nearest.
	last := sort.Search(len(list), func(n int) bool { return p.before[list[n]].from >= hi })
	for n := last - 1; n >= max(0, last-maxLooks); n-- {
		was := &p.before[list[n]]
		switch {
		case p.r.Still[list[n]] || was.to <= lo:
		case exact && (was.from != lo || was.to != hi):
		case b.stands(was.from, was.to):
			return list[n]
		}
	}
	return -1
}

func texts(items []Item) map[string]*Text {
	out := map[string]*Text{}
	for i := range items {
		if items[i].Text != nil && items[i].Place.Known {
			out[items[i].Path] = items[i].Text
		}
	}
	return out
}

func sorted(files map[string]*Text) []string {
	var out []string
	for name := range files {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Fingerprints names each finding so that the name outlives moves, renames and
// reformatting; equal ones are told apart by their order.
func Fingerprints(items []Item) []string {
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
		items[i].prepare()
	}
	slices.SortStableFunc(order, func(x, y int) int {
		return cmp.Or(cmp.Compare(items[x].Home, items[y].Home), cmp.Compare(items[x].Place.Start, items[y].Place.Start), cmp.Compare(items[x].says, items[y].says))
	})
	seen := map[string]int{}
	out := make([]string, len(items))
	for _, i := range order {
		key := items[i].says + "\x00" + items[i].core
		seen[key]++
		sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", key, seen[key]))
		out[i] = hex.EncodeToString(sum[:])
	}
	return out
}
