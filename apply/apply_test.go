package apply

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"

	"github.com/aspis-dev/aspis/schemas"
)

func TestNothingInDotGitIsEverWritten(t *testing.T) {
	for _, p := range []string{".git", ".git/config", ".GIT/hooks/x", "a/.Git/x", ".g\u200cit/config", "\ufeff.git/x", ".git./x", ".git /x", "GIT~1/config", "sub/git~1", ".git::$INDEX_ALLOCATION/x", ".git:x/y", "../x", "/etc/passwd", "a//b", "", "．git/x"} {
		if Refusal(p) == "" {
			t.Errorf("%q may be written", p)
		}
	}
	for _, p := range []string{".gitignore", ".github/x", "git/x", "a.git/x", "..a", "git~10", ".gitattributes", "digit"} {
		if why := Refusal(p); why != "" {
			t.Errorf("%q: %s", p, why)
		}
	}
}

func TestProtectedFiles(t *testing.T) {
	for _, p := range []string{".asp/asp.json", ".github/workflows/ci.yml", ".envrc", "sub/.envrc", ".vscode/tasks.json", "x/.vscode/settings.json", ".claude/settings.json", ".mcp.json", ".husky/pre-commit", ".gitattributes", "Jenkinsfile", ".GitHub/Workflows/x.yml"} {
		if Protected(p) == "" {
			t.Errorf("%q is not protected", p)
		}
	}
	for _, p := range []string{"main.go", "docs/asp.json", "github/workflows/x", "envrc", ".asprc"} {
		if why := Protected(p); why != "" {
			t.Errorf("%q: %s", p, why)
		}
	}
}

func TestLinksStayInside(t *testing.T) {
	for at, target := range map[string]string{"a": "/etc/passwd", "a/b": "../../x", "c": "..", "d": "", "e": ".git/config", "f/g": "../.GIT", "h": "x\x00y"} {
		if LinkRefusal(at, target) == "" {
			t.Errorf("%q may lead to %q", at, target)
		}
	}
	for at, target := range map[string]string{"a": "b", "a/b": "../c", "x": "nowhere/at/all", "d/e": "..", "l": ".gitignore"} {
		if why := LinkRefusal(at, target); why != "" {
			t.Errorf("%q to %q: %s", at, target, why)
		}
	}
}

func edit(content string, l1, c1, l2, c2 int, text string) schemas.TextEdit {
	return schemas.TextEdit{RangeBasis: schemas.BlobRefOf([]byte(content)), CoordinateSystem: "utf16", NewText: text,
		Range: schemas.Range{Start: schemas.Position{Line: l1, Char: c1}, End: schemas.Position{Line: l2, Char: c2}}}
}

func TestTextEdits(t *testing.T) {
	for name, tc := range map[string]struct {
		content string
		edits   [][5]any
		want    string // "!" for an error
	}{
		"replace":           {"abc\n", [][5]any{{0, 1, 0, 2, "X"}}, "aXc\n"},
		"insert at end":     {"abc", [][5]any{{0, 3, 0, 3, "!"}}, "abc!"},
		"empty file":        {"", [][5]any{{0, 0, 0, 0, "x"}}, "x"},
		"behind last line":  {"a\n", [][5]any{{1, 0, 1, 0, "b\n"}}, "a\nb\n"},
		"emoji":             {"\U0001F600b", [][5]any{{0, 2, 0, 3, "c"}}, "\U0001F600c"},
		"inside emoji":      {"\U0001F600b", [][5]any{{0, 1, 0, 3, "c"}}, "!"},
		"crlf":              {"a\r\nb\r\n", [][5]any{{1, 0, 1, 1, "c"}}, "a\r\nc\r\n"},
		"join lines":        {"a\r\nb", [][5]any{{0, 1, 1, 0, ""}}, "ab"},
		"lone cr":           {"a\rb", [][5]any{{1, 0, 1, 1, "c"}}, "a\rc"},
		"byte order mark":   {"\ufeffa", [][5]any{{0, 1, 0, 2, "b"}}, "\ufeffb"},
		"two":               {"abcd", [][5]any{{0, 3, 0, 4, "D"}, {0, 0, 0, 1, "A"}}, "AbcD"},
		"touching":          {"abcd", [][5]any{{0, 0, 0, 2, "x"}, {0, 2, 0, 4, "y"}}, "xy"},
		"insert and delete": {"abcd", [][5]any{{0, 1, 0, 1, "x"}, {0, 1, 0, 2, ""}}, "axcd"},
		"overlap":           {"abcd", [][5]any{{0, 0, 0, 2, "x"}, {0, 1, 0, 3, "y"}}, "!"},
		"same insert twice": {"abcd", [][5]any{{0, 1, 0, 1, "x"}, {0, 1, 0, 1, "y"}}, "!"},
		"behind line":       {"ab\ncd", [][5]any{{0, 3, 0, 3, "x"}}, "!"},
		"behind file":       {"ab", [][5]any{{1, 0, 1, 0, "x"}}, "!"},
		"backwards":         {"ab", [][5]any{{0, 2, 0, 1, "x"}}, "!"},
	} {
		t.Run(name, func(t *testing.T) {
			var edits []schemas.TextEdit
			for _, e := range tc.edits {
				edits = append(edits, edit(tc.content, e[0].(int), e[1].(int), e[2].(int), e[3].(int), e[4].(string)))
			}
			got, err := TextEdits([]byte(tc.content), edits)
			if tc.want == "!" {
				if err == nil {
					t.Fatalf("got %q", got)
				}
				return
			}
			if err != nil || string(got) != tc.want {
				t.Fatalf("got %q (%v), want %q", got, err, tc.want)
			}
		})
	}
	if _, err := TextEdits([]byte("b"), []schemas.TextEdit{edit("a", 0, 0, 0, 1, "x")}); err == nil {
		t.Fatal("an edit on another content was taken")
	}
}

// TestTextEditsAgreeWithUTF16 applies one edit by positions and the same by
// indices into UTF-16.
func TestTextEditsAgreeWithUTF16(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.StringMatching(`[aé\x{1F600}日]{0,12}`).Draw(t, "line")
		units := utf16.Encode([]rune(line))
		var cuts []int
		n := 0
		for _, r := range line {
			cuts = append(cuts, n)
			n += utf16.RuneLen(r)
		}
		cuts = append(cuts, n)
		i := rapid.SampledFrom(cuts).Draw(t, "from")
		j := rapid.SampledFrom(cuts).Draw(t, "to")
		if j < i {
			i, j = j, i
		}
		text := rapid.StringMatching(`[x\x{1F680}]{0,3}`).Draw(t, "text")
		content := "head\r\n" + line + "\ntail"
		want := "head\r\n" + string(utf16.Decode(units[:i])) + text + string(utf16.Decode(units[j:])) + "\ntail"
		got, err := TextEdits([]byte(content), []schemas.TextEdit{edit(content, 1, i, 1, j, text)})
		if err != nil || string(got) != want {
			t.Fatalf("got %q (%v), want %q", got, err, want)
		}
	})
}

type tree map[string]string

func (m tree) Blob(_ context.Context, p string) (schemas.BlobRef, bool, error) {
	text, ok := m[p]
	return schemas.BlobRefOf([]byte(text)), ok, nil
}

func (m tree) Open(_ context.Context, ref schemas.BlobRef) (io.ReadCloser, bool, error) {
	for _, text := range m {
		if schemas.BlobRefOf([]byte(text)) == ref {
			return io.NopCloser(strings.NewReader(text)), true, nil
		}
	}
	return nil, false, nil
}

func TestPlansAreHeldAgainstTheBaseline(t *testing.T) {
	base := tree{"a": "one\n", "b": "two\n"}
	one, two := schemas.BlobRefOf([]byte("one\n")), schemas.BlobRefOf([]byte("two\n"))
	plan := func() *schemas.EditPlan {
		pre := schemas.Precondition{ExpectedDigest: one}
		return &schemas.EditPlan{TouchedResources: []schemas.Touched{{Path: "a", Kind: schemas.ChangeModify, Precondition: pre}},
			WorkspaceEdit: &schemas.WorkspaceEdit{DocumentChanges: []schemas.DocChange{{Path: "a", Kind: schemas.ChangeModify, Precondition: pre, After: two}}}}
	}
	if err := Check(context.Background(), plan(), base); err != nil {
		t.Fatal(err)
	}
	upper := plan()
	upper.TouchedResources[0].Kind, upper.TouchedResources[0].To = schemas.ChangeRename, "A"
	upper.WorkspaceEdit.DocumentChanges[0].Kind, upper.WorkspaceEdit.DocumentChanges[0].To, upper.WorkspaceEdit.DocumentChanges[0].After = schemas.ChangeRename, "A", ""
	if err := Check(context.Background(), upper, base); err != nil {
		t.Fatalf("a file cannot get a name in capitals: %v", err)
	}
	both := func(p *schemas.EditPlan, f func(pre *schemas.Precondition, path, to *string, kind *schemas.ChangeKind)) {
		f(&p.TouchedResources[0].Precondition, &p.TouchedResources[0].Path, &p.TouchedResources[0].To, &p.TouchedResources[0].Kind)
		d := &p.WorkspaceEdit.DocumentChanges[0]
		f(&d.Precondition, &d.Path, &d.To, &d.Kind)
	}
	for name, tc := range map[string]struct {
		change func(*schemas.EditPlan)
		stale  bool
	}{
		"other content": {func(p *schemas.EditPlan) {
			both(p, func(pre *schemas.Precondition, _, _ *string, _ *schemas.ChangeKind) { pre.ExpectedDigest = two })
		}, true},
		"gone": {func(p *schemas.EditPlan) {
			both(p, func(_ *schemas.Precondition, path, _ *string, _ *schemas.ChangeKind) { *path = "c" })
		}, true},
		"there": {func(p *schemas.EditPlan) {
			both(p, func(pre *schemas.Precondition, _, _ *string, k *schemas.ChangeKind) {
				*pre, *k = schemas.Precondition{ExpectedAbsence: true}, schemas.ChangeCreate
			})
		}, true},
		"in .git": {func(p *schemas.EditPlan) {
			both(p, func(_ *schemas.Precondition, path, _ *string, _ *schemas.ChangeKind) { *path = ".git/hooks/x" })
		}, false},
		"target taken": {func(p *schemas.EditPlan) {
			both(p, func(_ *schemas.Precondition, _, to *string, k *schemas.ChangeKind) {
				*to, *k = "b", schemas.ChangeRename
			})
			p.WorkspaceEdit.DocumentChanges[0].After = ""
		}, true},
		"not named":   {func(p *schemas.EditPlan) { p.TouchedResources = nil }, false},
		"named only":  {func(p *schemas.EditPlan) { p.WorkspaceEdit.DocumentChanges = nil }, false},
		"named twice": {func(p *schemas.EditPlan) { p.TouchedResources = append(p.TouchedResources, p.TouchedResources[0]) }, false},
		"other kind":  {func(p *schemas.EditPlan) { p.TouchedResources[0].Kind = schemas.ChangeDelete }, false},
		"missing blob": {func(p *schemas.EditPlan) {
			p.WorkspaceEdit.DocumentChanges[0].After = schemas.BlobRefOf([]byte("never"))
		}, false},
		"bad text edits": {func(p *schemas.EditPlan) {
			d := &p.WorkspaceEdit.DocumentChanges[0]
			d.After, d.Edits = "", []schemas.TextEdit{edit("one\n", 9, 0, 9, 0, "x")}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan()
			tc.change(p)
			var problem *Problem
			if err := Check(context.Background(), p, base); !errors.As(err, &problem) || problem.Stale != tc.stale {
				t.Fatalf("%v", err)
			}
		})
	}
}

func FuzzTextEdits(f *testing.F) {
	f.Add([]byte("a\r\n\U0001F600b\n"), 0, 1, 1, 2, "x")
	f.Fuzz(func(t *testing.T, content []byte, l1, c1, l2, c2 int, text string) {
		got, err := TextEdits(content, []schemas.TextEdit{edit(string(content), l1, c1, l2, c2, text)})
		if err == nil && !bytes.Contains(got, []byte(text)) {
			t.Fatal("the new text is lost")
		}
	})
}
