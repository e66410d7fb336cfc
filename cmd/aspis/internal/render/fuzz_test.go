package render

import (
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/aspis-dev/aspis/schemas"
)

// dangerous gives what in text could do anything to a terminal but show: all
// that is not our own colour, a line's end or a character with a shape.
func dangerous(s string) error {
	for _, code := range []string{"31;1", "33", "32;1", "2", "1", "0"} {
		s = strings.ReplaceAll(s, "\x1b["+code+"m", "")
	}
	marks := 0
	for i, r := range s {
		if _, n := utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && n == 1 {
			return fmt.Errorf("byte %x at %d is not UTF-8", s[i], i)
		}
		if marks++; !unicode.Is(unicode.Mn, r) {
			marks = 0
		}
		if r != '\n' && (unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Cs, unicode.Co) || ignorable(r) || marks > mostMarks) {
			return fmt.Errorf("%U at %d", r, i)
		}
	}
	return nil
}

func FuzzNothingReachesTheTerminal(f *testing.F) {
	f.Add("a\x1b[31m", "m\u202e", "line\x07\xff\n", 3, 9, true)
	f.Add("\u2066", "\x9b1m", "\r\nx", -1, 1<<20, false)
	f.Add("e\u0301\u0301\u0301\u0301\u0301", "\u034f\ufe0f\U000e0041", "\x1b[31;1m\xc2", 0, 2, true)
	f.Add("\xf0\x9f", "\u2028\u2029", strings.Repeat("\U0001F600", 40), 11, 12, false)
	f.Fuzz(func(t *testing.T, path, message, text string, from, to int, colour bool) {
		// Our own sequences in what comes from outside would be taken for ours below.
		outside := strings.NewReplacer("\x1b[", "\x1b\x1b")
		path, message, text = outside.Replace(path), outside.Replace(message), outside.Replace(text)
		o := Options{Source: func(string) ([]byte, bool) { return []byte(text), true }, Width: 60, Palette: Colours(colour)}
		fi := finding1(path, message, 0, from, to)
		fi.NextStep, fi.SeverityNote, fi.Diagnostic.Help, fi.Diagnostic.Severity = message, path, text, schemas.Severity(path)
		other := fi
		other.Diagnostic.Code, other.Disposition = text, path
		v := verdict(schemas.Decision(message), fi, other)
		v.Coverage.Degraded = []schemas.Degradation{{Source: path, Reason: schemas.DegradationReason(message), Detail: text}}
		v.Receipt.ReceiptID, v.Assurance.Mode = path, schemas.AssuranceMode(text)
		st := &schemas.HostStatus{AssuranceCapabilities: []schemas.AssuranceMode{schemas.AssuranceMode(text)}, Servers: []schemas.Server{{ID: path, State: text, Role: message, Detail: text}}}
		st.Host.Name, st.Host.State, st.Workspace.Root, st.Policy.Source = path, text, message, path
		st.Gates.Gate = schemas.GateState{RequiredProviders: []string{path}, Degraded: v.Coverage.Degraded}
		st.Capabilities.Check.Providers = []string{text}
		v.Receipt.Failures = v.Coverage.Degraded
		var b strings.Builder
		for _, err := range []error{
			Verdict(&b, v, o), Receipt(&b, &v.Receipt, o), Status(&b, st, o), Paragraphs(&b, o, text),
			Walls(&b, []WallRow{{Name: path, Seen: message, Fix: text}}, o),
			Facts(&b, []FactRow{{Name: path, Seen: message, Remedy: text}}, o),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := dangerous(b.String()); err != nil {
			t.Fatalf("%v in %q", err, b.String())
		}
		if e := Escape(text); strings.ContainsAny(e, "\n\r\t\x1b") {
			t.Fatalf("%q", e)
		}
	})
}
