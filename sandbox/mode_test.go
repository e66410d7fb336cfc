package sandbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// full is evidence in which every wall stands.
func full() Evidence {
	var e Evidence
	for _, row := range Table() {
		e.Walls = append(e.Walls, row.Wall(true, "seen"))
	}
	return e
}

func TestTable(t *testing.T) {
	seen := map[WallName]bool{}
	for _, row := range Table() {
		if seen[row.Name] {
			t.Errorf("%s is there twice", row.Name)
		}
		seen[row.Name] = true
		if row.Needed != ModeMediatedWrite && row.Needed != ModeIsolated {
			t.Errorf("%s is needed for %v", row.Name, row.Needed)
		}
		for _, s := range []string{row.Meaning, row.Remedy} {
			if len(s) < 20 || !strings.HasSuffix(s, ".") || strings.ToUpper(s[:1]) != s[:1] {
				t.Errorf("%s: %q is not a sentence", row.Name, s)
			}
		}
		if got, ok := Lookup(row.Name); !ok || got != row {
			t.Errorf("%s is not found", row.Name)
		}
	}
	if len(seen) != 28 {
		t.Errorf("%d walls", len(seen))
	}
	Table()[0].Name = "changed"
	if Table()[0].Name != WallUserNamespace {
		t.Error("the table can be changed")
	}
}

func TestFullIsIsolated(t *testing.T) {
	if mode, missing := full().Mode(); mode != ModeIsolated || len(missing) != 0 {
		t.Errorf("mode %v, missing %v", mode, missing)
	}
}

// TestEachWallIsNeeded takes one wall away, in each way in which one can be
// missing.
func TestEachWallIsNeeded(t *testing.T) {
	for i, row := range Table() {
		for name, change := range map[string]func(*Evidence){
			"fallen":         func(e *Evidence) { e.Walls[i].Standing = false },
			"not mentioned":  func(e *Evidence) { e.Walls = slices.Delete(e.Walls, i, i+1) },
			"contradicted":   func(e *Evidence) { e.Walls = append(e.Walls, row.Wall(false, "gone")) },
			"belittled":      func(e *Evidence) { e.Walls[i].Standing = false; e.Walls[i].Needed = ModeIsolated + 1 },
			"in other words": func(e *Evidence) { e.Walls[i].Name += " " },
		} {
			e := full()
			change(&e)
			mode, missing := e.Mode()
			if mode != row.Needed-1 {
				t.Errorf("%s %s: mode %v", row.Name, name, mode)
			}
			if len(missing) != 1 || missing[0].Name != row.Name && name != "in other words" {
				t.Errorf("%s %s: missing %v", row.Name, name, missing)
			}
		}
	}
}

func TestUnknownWall(t *testing.T) {
	e := full()
	e.Walls = append(e.Walls, Wall{Name: "from-the-future"})
	if mode, _ := e.Mode(); mode != ModeMediatedWrite {
		t.Errorf("mode %v", mode)
	}
	if mode, missing := (Evidence{}).Mode(); mode != ModeGated || len(missing) != len(Table()) {
		t.Errorf("no evidence at all gives %v, missing %v", mode, missing)
	}
}

// TestLessNeverRaises is the property that the mode rests on: with fewer walls
// it is never higher, and it is what the table says for the set that stands.
func TestLessNeverRaises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := full()
		want := ModeIsolated
		down := 0
		for i := range e.Walls {
			if rapid.IntRange(0, 9).Draw(t, string(e.Walls[i].Name)) == 0 {
				e.Walls[i].Standing = false
				want = min(want, e.Walls[i].Needed-1)
				down++
			}
		}
		before, missing := e.Mode()
		if before != want || len(missing) != down {
			t.Fatalf("mode %v, want %v; %d missing, want %d", before, want, len(missing), down)
		}
		i := rapid.IntRange(0, len(e.Walls)-1).Draw(t, "next")
		e.Walls[i].Standing = false
		if after, _ := e.Mode(); after > before {
			t.Fatalf("taking %s away raises %v to %v", e.Walls[i].Name, before, after)
		}
	})
}

func TestModeText(t *testing.T) {
	for m, want := range map[Mode]string{ModeGated: "gated", ModeMediatedWrite: "mediated-write", ModeIsolated: "isolated"} {
		if m.String() != want {
			t.Errorf("%d is %q", m, m)
		}
		var back Mode
		if err := back.UnmarshalText([]byte(want)); err != nil || back != m {
			t.Errorf("%q is read as %v, %v", want, back, err)
		}
	}
	if s := fmt.Sprint(Mode(7), Mode(-1)); s != "Mode(7) Mode(-1)" {
		t.Error(s)
	}
	if _, err := Mode(7).MarshalText(); err == nil {
		t.Error("a mode that is none has a word")
	}
	var m Mode
	if err := m.UnmarshalText([]byte("advisory")); err == nil {
		t.Error("advisory is no mode of a runtime")
	}
}

func TestEvidenceJSON(t *testing.T) {
	e := full()
	e.Runtime, e.Pid = "r", 7
	e.Walls[3].Standing = false
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var back Evidence
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(e, back); d != "" {
		t.Error(d)
	}
	if !strings.Contains(string(b), `"name":"no-new-privileges","standing":false,"seen":"seen","needed":"mediated-write"`) {
		t.Errorf("%s", b)
	}
}
