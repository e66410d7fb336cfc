// Package report reads what tools print: SARIF 2.1.0, lines that errorformat
// understands, JSON of any shape by a mapping, checkstyle XML. What it reads is
// hostile. It knows nothing of how a tool was run, nor of ASP; what it cannot
// read it says, since output that was not understood is no clean bill.
package report

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/aspis-dev/aspis/cmd/internal/toolspec"
)

// Bounds of one report.
const (
	// MaxFindings is how many findings are read; the rest is counted as lost.
	MaxFindings = 100_000
	maxMessage  = 2000 // bytes
	maxRule     = 120  // bytes
)

// Finding is what a tool says of one place. Lines and columns are as the tool
// counts them, less its base: both begin at 0. -1 means that it does not say.
type Finding struct {
	Rule, Message string
	// Level is the tool's own word.
	Level string
	Help  string
	// Path is as the tool wrote it, not cleaned and not judged.
	Path              string
	Line, EndLine     int
	Column, EndColumn int
	// Offset and EndOffset are in bytes of the file, where a tool counts those.
	Offset, EndOffset int
}

// Report is what was read.
type Report struct {
	Findings []Finding
	// Gaps says why the findings are not all that the tool had to say.
	Gaps []string
	// Columns is what the report itself says of its columns; "" is the
	// description's.
	Columns string
}

func (r *Report) gap(format string, args ...any) {
	const most = 20
	if len(r.Gaps) < most {
		r.Gaps = append(r.Gaps, fmt.Sprintf(format, args...))
	}
}

// add keeps a finding with its text made harmless.
func (r *Report) add(f Finding) {
	if len(r.Findings) >= MaxFindings {
		if len(r.Findings) == MaxFindings {
			r.gap("there are more than %d findings", MaxFindings)
			r.Findings = append(r.Findings, Finding{}) // taken off by Read
		}
		return
	}
	f.Rule = ruleName(f.Rule)
	f.Message = Text(f.Message, maxMessage)
	f.Level = strings.ToLower(Text(f.Level, 40))
	f.Help = Text(f.Help, maxMessage)
	r.Findings = append(r.Findings, f)
}

// nowhere is a finding without a place in its file.
func nowhere() Finding {
	return Finding{Line: -1, EndLine: -1, Column: -1, EndColumn: -1, Offset: -1, EndOffset: -1}
}

// Read reads a tool's output. An error means that it is not what the format
// says: nothing that was read of it counts then.
func Read(f toolspec.Format, out []byte) (*Report, error) {
	r := &Report{}
	if len(bytes.TrimSpace(out)) == 0 && (f.EmptyIsClean || f.Format == "errorformat") {
		return r, nil
	}
	var err error
	switch f.Format {
	case "sarif":
		err = r.sarif(out)
	case "errorformat":
		err = r.errorformat(f, out)
	case "json", "jsonlines":
		err = r.mapped(f, out)
	case "checkstyle":
		err = r.checkstyle(f, out)
	case "status":
	default:
		err = fmt.Errorf("the format %q is not known", f.Format)
	}
	if err != nil {
		return nil, err
	}
	if len(r.Findings) > MaxFindings {
		r.Findings = r.Findings[:MaxFindings]
	}
	if f.Rule != "" {
		if err := r.splitMessages(f.Rule); err != nil {
			return nil, err
		}
	}
	for i := range r.Findings {
		if f.RulePrefix != "" && r.Findings[i].Rule != NoRule {
			r.Findings[i].Rule = ruleName(f.RulePrefix + r.Findings[i].Rule)
		}
		if r.Findings[i].Message == "" {
			r.Findings[i].Message = Text(f.Message, maxMessage)
		}
		if r.Findings[i].Message == "" {
			r.Findings[i].Message = "the tool gives no message"
		}
	}
	return r, nil
}

// splitMessages takes the rule out of messages that hold it.
func (r *Report) splitMessages(pattern string) error {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("output.rule: %w", err)
	}
	rule, message, level := re.SubexpIndex("rule"), re.SubexpIndex("message"), re.SubexpIndex("severity")
	for i := range r.Findings {
		m := re.FindStringSubmatch(r.Findings[i].Message)
		if m == nil {
			continue
		}
		if rule > 0 && m[rule] != "" {
			r.Findings[i].Rule = ruleName(m[rule])
		}
		if level > 0 && m[level] != "" {
			r.Findings[i].Level = strings.ToLower(Text(m[level], 40))
		}
		if message > 0 && m[message] != "" {
			r.Findings[i].Message = m[message]
		}
	}
	return nil
}

// NoRule is the rule of a finding whose tool names none.
const NoRule = "finding"

var notRule = regexp.MustCompile(`[^A-Za-z0-9@._:/+-]+`)

// ruleName makes a rule's name fit for a code.
func ruleName(s string) string {
	s = strings.Trim(notRule.ReplaceAllString(Text(s, 4*maxRule), "-"), "-/")
	if s == "" {
		return NoRule
	}
	return s[:min(len(s), maxRule)]
}

// escapes are terminal sequences: CSI, OSC and the two-byte ones.
var escapes = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[@-Z\\\\-_])")

// Text makes hostile text harmless: valid UTF-8 on one line, without control
// characters and terminal sequences, of at most limit bytes.
func Text(s string, limit int) string {
	if len(s) > 4*limit {
		s = s[:4*limit]
	}
	if strings.IndexByte(s, 0x1b) >= 0 {
		s = escapes.ReplaceAllString(s, "")
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r < 0x20, r >= 0x7f && r < 0xa0, r == utf8.RuneError, hides(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > limit {
		for limit > 0 && !utf8.RuneStart(s[limit]) {
			limit--
		}
		s = s[:limit]
	}
	return s
}

// hides is true of characters that reorder or hide text.
func hides(r rune) bool {
	return (r >= 0x200b && r <= 0x200f) || (r >= 0x202a && r <= 0x202e) || (r >= 0x2060 && r <= 0x2069) || r == 0xfeff
}

// Relative gives a path within the root, with slashes, or false where it leads
// outside, is no path at all, or is the root itself.
func Relative(root, p string) (string, bool) {
	if strings.ContainsRune(p, 0) || !utf8.ValidString(p) {
		return "", false
	}
	if path.IsAbs(p) {
		rest, ok := strings.CutPrefix(path.Clean(p), path.Clean(root)+"/")
		if !ok {
			return "", false
		}
		p = rest
	}
	p = path.Clean(p)
	if p == "." || p == ".." || p == "/" || strings.HasPrefix(p, "../") {
		return "", false
	}
	return p, true
}
