package schemas

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"
)

func TestAppendStringReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`["\\\n\x00-\x1fa-zé\x{1F600}\x7f]{0,40}`)).Draw(t, "text")
		raw := AppendString([]byte("x"), []byte(text))
		var got string
		if err := json.Unmarshal(raw[1:], &got); err != nil || got != text {
			t.Fatalf("%q became %s, which reads as %q (%v)", text, raw, got, err)
		}
	})
}

// TestBoundsAreThoseOfTheTokens holds the quick scan against a real tokenizer.
func TestBoundsAreThoseOfTheTokens(t *testing.T) {
	value := rapid.Custom(func(t *rapid.T) any {
		var make func(int) any
		make = func(left int) any {
			switch k := rapid.IntRange(0, 4).Draw(t, "kind"); {
			case k == 0 && left > 0:
				m := map[string]any{}
				for range rapid.IntRange(0, 3).Draw(t, "n") {
					m[rapid.StringMatching(`[a\\"{},:\[]{0,5}`).Draw(t, "name")] = make(left - 1)
				}
				return m
			case k == 1 && left > 0:
				a := []any{}
				for range rapid.IntRange(0, 3).Draw(t, "n") {
					a = append(a, make(left-1))
				}
				return a
			case k == 2:
				return rapid.StringMatching(`[a\\"{},:\[]{0,8}`).Draw(t, "text")
			default:
				return 7
			}
		}
		return make(6)
	})
	rapid.Check(t, func(t *rapid.T) {
		raw, err := json.Marshal(value.Draw(t, "value"))
		if err != nil {
			t.Fatal(err)
		}
		deepest := 0
		d := jsontext.NewDecoder(bytes.NewReader(raw))
		for {
			if _, err := d.ReadToken(); err != nil {
				break
			}
			deepest = max(deepest, d.StackDepth())
		}
		if err := scan(raw, Limits{MaxDepth: max(deepest, 1), MaxElements: len(raw) + 1}); err != nil {
			t.Fatalf("%s is %d deep: %v", raw, deepest, err)
		}
		var e *DecodeError
		if err := scan(raw, Limits{MaxDepth: deepest - 1, MaxElements: len(raw) + 1}); deepest > 0 && !errors.As(err, &e) {
			t.Fatalf("%s is %d deep and passed a limit under that", raw, deepest)
		}
	})
}

func FuzzAppendString(f *testing.F) {
	f.Add([]byte("plain text without any\n\"quotes\\\x1f"))
	f.Add([]byte(strings.Repeat("a", 31) + "\x7f\u2028"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if !utf8.Valid(text) {
			return
		}
		var got string
		if err := json.Unmarshal(AppendString(nil, text), &got); err != nil || got != string(text) {
			t.Fatalf("%q reads as %q (%v)", text, got, err)
		}
	})
}
