package match

// maxTokens bounds what is aligned, on both sides together. Above it findings
// are compared by their own tokens only.
const maxTokens = 4_000_000

// unaligned stands for a token without a counterpart.
const unaligned = -1

// stream is the tokens of all files of one side, one after the other.
type stream struct {
	words []int32 // interned
	to    []int32 // the counterpart in the other stream
	// begin and end are where each file lies, by name.
	begin, end map[string]int
	order      []string
	// broken and back count, up to each token, those that do not follow on the one
	// before in the other stream, and those that come before it or are not there.
	broken, back []int32
	// edge is true at the first token of a file.
	edge []bool
}

func newStream(files map[string]*Text, order []string, intern map[string]int32) *stream {
	s := &stream{begin: map[string]int{}, end: map[string]int{}, order: order}
	for _, name := range order {
		t := files[name]
		s.begin[name] = len(s.words)
		for i := range t.tokens {
			w := t.word(i)
			id, ok := intern[w]
			if !ok {
				id = int32(len(intern))
				intern[w] = id
			}
			s.words = append(s.words, id)
			s.to = append(s.to, unaligned)
			s.edge = append(s.edge, i == 0)
		}
		s.end[name] = len(s.words)
	}
	return s
}

// align pairs the tokens of two streams. home names the file of b from which a
// file of a came. Where files agree at their ends they are paired; the rest by
// runs of tokens that are on both sides once, and what agrees around them.
func align(a, b *stream, home func(string) string) {
	for _, name := range a.order {
		i, from := a.begin[name], home(name)
		j, ok := b.begin[from]
		if !ok {
			continue
		}
		endA, endB := a.end[name], b.end[from]
		for i < endA && j < endB && a.words[i] == b.words[j] && b.to[j] == unaligned {
			pair(a, b, i, j)
			i, j = i+1, j+1
		}
		for endA > i && endB > j && a.words[endA-1] == b.words[endB-1] && b.to[endB-1] == unaligned {
			endA, endB = endA-1, endB-1
			pair(a, b, endA, endB)
		}
	}
	for _, k := range []int{24, 12, 6, 4} {
		anchors(a, b, k)
	}
	fill(a, b)
}

// Bounds of what fill compares, in pairs of tokens: of one gap, and of all.
const (
	maxGap  = 250_000
	maxFill = 20_000_000
)

// fill pairs what two gaps between the same neighbours have in common, in order:
// what is left there is too short to be told from the like of it elsewhere.
func fill(a, b *stream) {
	left := maxFill
	for _, name := range a.order {
		end := a.end[name]
		for i := a.begin[name]; i < end; i++ {
			if a.to[i] != unaligned {
				continue
			}
			stop := i
			for stop < end && a.to[stop] == unaligned {
				stop++
			}
			from, to, ok := between(a, b, i, stop)
			if n := (stop - i) * (to - from); ok && n <= maxGap && n <= left {
				left -= n
				common(a, b, i, stop, from, to)
			}
			i = stop
		}
	}
}

// between gives the gap of b that lies between the counterparts of what is around
// a gap of a. A file's edge is not a neighbour.
func between(a, b *stream, i, stop int) (from, to int, ok bool) {
	if a.edge[i] || stop >= len(a.words) || a.edge[stop] {
		return 0, 0, false
	}
	from, to = int(a.to[i-1])+1, int(a.to[stop])
	if from >= to {
		return 0, 0, false
	}
	for j := from; j <= to; j++ {
		if b.edge[j] || (j < to && b.to[j] != unaligned) {
			return 0, 0, false
		}
	}
	return from, to, true
}

// common pairs a longest common subsequence.
func common(a, b *stream, i, stop, from, to int) {
	n, m := stop-i, to-from
	length := make([]int32, (n+1)*(m+1))
	at := func(x, y int) *int32 { return &length[x*(m+1)+y] }
	for x := n - 1; x >= 0; x-- {
		for y := m - 1; y >= 0; y-- {
			if a.words[i+x] == b.words[from+y] {
				*at(x, y) = *at(x+1, y+1) + 1
			} else {
				*at(x, y) = max(*at(x+1, y), *at(x, y+1))
			}
		}
	}
	for x, y := 0, 0; x < n && y < m; {
		switch {
		case a.words[i+x] == b.words[from+y]:
			pair(a, b, i+x, from+y)
			x, y = x+1, y+1
		case *at(x+1, y) >= *at(x, y+1):
			x++
		default:
			y++
		}
	}
}

func pair(a, b *stream, i, j int) { a.to[i], b.to[j] = int32(j), int32(i) }

// anchors pairs runs of k tokens that are free and on each side once.
func anchors(a, b *stream, k int) {
	inA, inB := runs(a, k), runs(b, k)
	for i := 0; i+k <= len(a.words); i++ {
		h, ok := hashAt(a, i, k)
		if !ok || inA[h] != i {
			continue
		}
		j, ok := inB[h]
		if !ok || j < 0 || !freeAndSame(a, b, i, j, k) {
			continue
		}
		for n := range k {
			pair(a, b, i+n, j+n)
		}
		extend(a, b, i, j, k)
	}
}

// extend pairs what agrees before and after a paired run.
func extend(a, b *stream, i, j, k int) {
	for x, y := i-1, j-1; x >= 0 && y >= 0 && !a.edge[x+1] && !b.edge[y+1]; x, y = x-1, y-1 {
		if a.words[x] != b.words[y] || a.to[x] != unaligned || b.to[y] != unaligned {
			break
		}
		pair(a, b, x, y)
	}
	for x, y := i+k, j+k; x < len(a.words) && y < len(b.words) && !a.edge[x] && !b.edge[y]; x, y = x+1, y+1 {
		if a.words[x] != b.words[y] || a.to[x] != unaligned || b.to[y] != unaligned {
			break
		}
		pair(a, b, x, y)
	}
}

func freeAndSame(a, b *stream, i, j, k int) bool {
	for n := range k {
		if a.words[i+n] != b.words[j+n] || a.to[i+n] != unaligned || b.to[j+n] != unaligned {
			return false
		}
	}
	return true
}

// runs gives where each run of k free tokens is, or -1 where it is more than
// once.
func runs(s *stream, k int) map[uint64]int {
	out := map[uint64]int{}
	for i := 0; i+k <= len(s.words); i++ {
		h, ok := hashAt(s, i, k)
		if !ok {
			continue
		}
		if _, twice := out[h]; twice {
			out[h] = -1
			continue
		}
		out[h] = i
	}
	return out
}

// hashAt is over k tokens of one file; ok is false where one is taken.
func hashAt(s *stream, i, k int) (h uint64, ok bool) {
	h = 14695981039346656037 // FNV-1a, by token
	for n := range k {
		if s.to[i+n] != unaligned || (n > 0 && s.edge[i+n]) {
			return 0, false
		}
		h = (h ^ uint64(uint32(s.words[i+n]))) * 1099511628211
	}
	return h, true
}

// sum makes run and stands answer at once, however long a range is.
func (s *stream) sum() {
	s.broken, s.back = make([]int32, len(s.to)+1), make([]int32, len(s.to)+1)
	for i, t := range s.to {
		s.broken[i+1], s.back[i+1] = s.broken[i], s.back[i]
		if t == unaligned || i == 0 || t != s.to[i-1]+1 {
			s.broken[i+1]++
		}
		if t == unaligned || i == 0 || s.to[i-1] == unaligned || t <= s.to[i-1] {
			s.back[i+1]++
		}
	}
}

// run reports whether tokens are all aligned, with one run of the other stream:
// pieces from several places are not the code that stood there.
func (s *stream) run(from, to int) bool {
	return s.to[from] != unaligned && s.broken[to] == s.broken[from+1]
}

// stands reports whether tokens are all there in the other stream in their
// order, with little put in between: what was put in is not what they are about.
func (s *stream) stands(from, to int) bool {
	const little = 8
	return s.to[from] != unaligned && s.back[to] == s.back[from+1] && int(s.to[to-1]-s.to[from]) < to-from+little
}
