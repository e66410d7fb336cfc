package hygiene

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// binaryProbe is how much is looked at to tell binary from text, as git does.
const binaryProbe = 8 << 10

func isBinary(b []byte) bool {
	return bytes.IndexByte(b[:min(len(b), binaryProbe)], 0) >= 0
}

// maxHits bounds the findings of one rule in one file. A file with more is
// hostile or no text, and its findings are reported to be incomplete.
const maxHits = 2000

// conflicts finds merge conflicts: an opening marker with a separator or an end
// after it. A row of equals signs alone is a heading, a row of closing brackets
// a quotation.
func conflicts(path string, text []byte) []hit {
	if !bytes.Contains(text, []byte("<<<<<<<")) {
		return nil
	}
	var hits []hit
	opened, last := -1, -1
	var key string
	flush := func() {
		if opened >= 0 && last > opened && len(hits) <= maxHits {
			hits = append(hits, hit{rule: ruleConflict, path: path, key: key, message: "an unresolved merge conflict",
				place: place{known: true, line: opened, lastLine: last, lastColumn: 7}})
		}
		opened, last = -1, -1
	}
	n := 0
	for raw := range bytes.Lines(text) {
		line := bytes.TrimRight(raw, "\r\n")
		switch conflictMarker(line) {
		case '<':
			flush()
			opened, last, key = n, n, string(bytes.TrimSpace(line))
		case '=':
			if opened >= 0 {
				last = n
			}
		case '>':
			if opened >= 0 {
				last = n
				flush()
			}
		}
		n++
	}
	flush()
	return hits
}

// conflictMarker returns the character of a marker line, or 0.
func conflictMarker(line []byte) byte {
	if len(line) < 7 || (line[0] != '<' && line[0] != '=' && line[0] != '>') {
		return 0
	}
	for _, c := range line[1:7] {
		if c != line[0] {
			return 0
		}
	}
	if len(line) > 7 && line[7] != ' ' {
		return 0
	}
	return line[0]
}

// hidden finds characters that cannot be seen: bidirectional controls, and
// those without width where no script or emoji has a use for them. There is one
// finding a line and rule.
func hidden(path string, text []byte) []hit {
	text = bytes.TrimPrefix(text, []byte("\uFEFF"))
	if ascii(text) {
		return nil
	}
	var hits []hit
	count := map[string]int{}
	n := 0
	for raw := range bytes.Lines(text) {
		if count[ruleBidi] > maxHits && count[ruleInvisible] > maxHits {
			break
		}
		if !ascii(raw) {
			for _, h := range hiddenIn(path, n, bytes.TrimRight(raw, "\r\n")) {
				if count[h.rule]++; count[h.rule] <= maxHits+1 {
					hits = append(hits, h)
				}
			}
		}
		n++
	}
	return hits
}

func hiddenIn(path string, n int, line []byte) []hit {
	type found struct {
		first, end int
		which      []rune
		more       int
	}
	by := map[string]*found{}
	column := 0
	before := rune('\n')
	flag := false // inside an emoji tag sequence, such as the flag of Wales
	rest := line
	for len(rest) > 0 {
		r, size := utf8.DecodeRune(rest)
		rest = rest[size:]
		after, _ := utf8.DecodeRune(rest)
		width := 1
		if r > 0xFFFF {
			width = 2
		}
		tag := r >= 0xE0020 && r <= 0xE007F
		flag = r == 0x1F3F4 || (flag && tag)
		if rule := hiddenRule(r, before, after, flag); rule != "" {
			f := by[rule]
			if f == nil {
				f = &found{first: column}
				by[rule] = f
			}
			f.end = column + width
			if len(f.which) < 8 {
				f.which = append(f.which, r)
			} else {
				f.more++
			}
		}
		before = r
		column += width
	}
	var hits []hit
	for _, rule := range []string{ruleBidi, ruleInvisible} {
		f := by[rule]
		if f == nil {
			continue
		}
		names := make([]string, len(f.which))
		for i, r := range f.which {
			names[i] = describe(r)
		}
		message := "hidden: " + strings.Join(names, ", ")
		if f.more > 0 {
			message += fmt.Sprintf(" and %d more", f.more)
		}
		hits = append(hits, hit{rule: rule, path: path, message: message,
			key:   fmt.Sprintf("%U+%d %s", f.which, f.more, bytes.TrimSpace(line)),
			place: place{known: true, line: n, start: f.first, lastLine: n, lastColumn: f.end}})
	}
	return hits
}

// hiddenRule tells which rule a character breaks, between its neighbours.
func hiddenRule(r, before, after rune, flag bool) string {
	switch {
	case r >= 0x202A && r <= 0x202E, r >= 0x2066 && r <= 0x2069:
		return ruleBidi
	case r == 0x061C, r == 0x200E, r == 0x200F:
		// Marks belong beside letters that are written from right to left.
		if unicode.In(before, rightToLeft...) || unicode.In(after, rightToLeft...) {
			return ""
		}
		return ruleInvisible
	case r == 0x200C, r == 0x200D:
		if unicode.In(before, joining...) || (r == 0x200D && (unicode.Is(unicode.So, before) || unicode.Is(unicode.Sk, before) || before == 0xFE0F)) {
			return ""
		}
		return ruleInvisible
	case r >= 0xFE00 && r <= 0xFE0F:
		// One after a symbol or a character of another script chooses its form;
		// a row of them, or one after nothing, carries data.
		if selector(before) || unicode.IsSpace(before) || (before < 0x80 && unicode.IsLetter(before)) {
			return ruleInvisible
		}
	case r >= 0xE0100 && r <= 0xE01EF:
		if !unicode.Is(unicode.Han, before) {
			return ruleInvisible
		}
	case r >= 0xE0000 && r <= 0xE007F:
		if !flag {
			return ruleInvisible
		}
	case r == 0x00AD, r == 0x034F, r == 0x115F, r == 0x1160, r == 0x17B4, r == 0x17B5, r == 0x180E, r == 0x200B, r == 0x2060,
		r >= 0x2061 && r <= 0x2064, r >= 0x206A && r <= 0x206F, r == 0x3164, r == 0xFEFF, r == 0xFFA0:
		return ruleInvisible
	}
	return ""
}

func selector(r rune) bool {
	return (r >= 0xFE00 && r <= 0xFE0F) || (r >= 0xE0100 && r <= 0xE01EF)
}

var (
	rightToLeft = []*unicode.RangeTable{unicode.Arabic, unicode.Hebrew, unicode.Syriac, unicode.Thaana, unicode.Nko, unicode.Adlam}
	// joining are the scripts in which ZWJ and ZWNJ choose the form of letters.
	joining = []*unicode.RangeTable{unicode.Arabic, unicode.Syriac, unicode.Mongolian, unicode.Nko, unicode.Devanagari, unicode.Bengali,
		unicode.Gurmukhi, unicode.Gujarati, unicode.Oriya, unicode.Tamil, unicode.Telugu, unicode.Kannada, unicode.Malayalam,
		unicode.Sinhala, unicode.Khmer, unicode.Myanmar, unicode.Tibetan}
)

var characterNames = map[rune]string{
	0x00AD: "soft hyphen", 0x061C: "Arabic letter mark", 0x200B: "zero width space", 0x200C: "zero width non-joiner",
	0x200D: "zero width joiner", 0x200E: "left-to-right mark", 0x200F: "right-to-left mark", 0x202A: "left-to-right embedding",
	0x202B: "right-to-left embedding", 0x202C: "pop directional formatting", 0x202D: "left-to-right override",
	0x202E: "right-to-left override", 0x2060: "word joiner", 0x2066: "left-to-right isolate", 0x2067: "right-to-left isolate",
	0x2068: "first strong isolate", 0x2069: "pop directional isolate", 0x3164: "Hangul filler", 0xFEFF: "zero width no-break space",
}

// describe names a character without printing it.
func describe(r rune) string {
	name := characterNames[r]
	switch {
	case name != "":
	case selector(r):
		name = "variation selector"
	case r >= 0xE0000 && r <= 0xE007F:
		name = "tag"
	default:
		return fmt.Sprintf("%U", r)
	}
	return fmt.Sprintf("%U (%s)", r, name)
}

func ascii(b []byte) bool {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
