package report

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"github.com/reviewdog/errorformat"
	"github.com/reviewdog/errorformat/fmts"

	"github.com/aspis-dev/aspis/cmd/internal/toolspec"
)

// maxLine is the longest line that errorformat is given, in bytes; its scanner
// stops without a word at one of 64 KiB.
const maxLine = 32 << 10

func (r *Report) errorformat(f toolspec.Format, out []byte) error {
	patterns := f.Errorformat
	if f.Preset != "" {
		p := fmts.DefinedFmts()[f.Preset]
		if p == nil {
			return fmt.Errorf("errorformat has no preset %.60q", f.Preset)
		}
		patterns = append(append([]string{}, patterns...), p.Errorformat...)
	}
	efm, err := errorformat.NewErrorformat(patterns)
	if err != nil {
		return fmt.Errorf("errorformat: %w", err)
	}
	ignore, err := compile(f.Ignore)
	if err != nil {
		return err
	}
	text, long := readable(out, ignore)
	if long > 0 {
		r.gap("%d lines of the output are longer than %d bytes", long, maxLine)
	}
	s := efm.NewScanner(strings.NewReader(text))
	odd, example := 0, ""
	for s.Scan() {
		e := s.Entry()
		if !e.Valid || (e.Filename == "" && e.Lnum == 0) {
			if odd++; example == "" {
				example = Text(strings.Join(e.Lines, " "), 200)
			}
			continue
		}
		found := nowhere()
		found.Path, found.Message, found.Level = e.Filename, e.Text, word(e.Type)
		if e.Nr > 0 {
			found.Rule = fmt.Sprint(e.Nr)
		}
		found.Line, found.EndLine = above(e.Lnum, base(f.LineBase)), above(e.EndLnum, base(f.LineBase))
		found.Column, found.EndColumn = above(e.Col, base(f.ColumnBase)), above(e.EndCol, base(f.ColumnBase))
		r.add(found)
	}
	if odd > 0 {
		r.gap("%d lines of the output are not understood, such as %q", odd, example)
	}
	return nil
}

func base(p *int) int {
	if p == nil {
		return 1
	}
	return *p
}

// above takes a base off; errorformat gives 0 where there is nothing.
func above(n, base int) int {
	if n < max(base, 1) {
		return -1
	}
	return n - base
}

// word spells the letter of an entry's type.
func word(t rune) string {
	switch t {
	case 'e', 'E':
		return "error"
	case 'w', 'W':
		return "warning"
	case 'i', 'I', 'n', 'N':
		return "info"
	case 0:
		return ""
	}
	return string(t)
}

func compile(patterns []string) ([]*regexp.Regexp, error) {
	var out []*regexp.Regexp
	for _, p := range patterns {
		re, err := regexp.Compile(p)
		if err != nil {
			return nil, fmt.Errorf("%.80q: %w", p, err)
		}
		out = append(out, re)
	}
	return out, nil
}

// readable drops terminal sequences, blank lines and lines that say nothing, and
// counts those that are too long to be read.
func readable(out []byte, ignore []*regexp.Regexp) (string, int) {
	var b strings.Builder
	long := 0
	for line := range bytes.Lines(out) {
		if len(line) > maxLine {
			long++
			continue
		}
		text := strings.ToValidUTF8(string(bytes.TrimRight(line, "\r\n")), "\uFFFD")
		if strings.IndexByte(text, 0x1b) >= 0 {
			text = escapes.ReplaceAllString(text, "")
		}
		if strings.TrimSpace(text) == "" || matches(ignore, text) {
			continue
		}
		b.WriteString(text)
		b.WriteByte('\n')
	}
	return b.String(), long
}

func matches(list []*regexp.Regexp, s string) bool {
	for _, re := range list {
		if re.MatchString(s) {
			return true
		}
	}
	return false
}
