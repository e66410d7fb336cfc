package hygiene

import (
	"testing"

	"github.com/aspis-dev/aspis/schemas"
)

func FuzzScan(f *testing.F) {
	set, err := loadLeakRules()
	if err != nil {
		f.Fatal(err)
	}
	rs := &secrets{rules: func() (*leakRules, error) { return set, nil }}
	f.Add("a.json", []byte("{}"))
	f.Add("tsconfig.json", []byte("{ // c\n \"a\": [1,], /* */ }"))
	f.Add("a.yaml", []byte("a: [\n"))
	f.Add("a.toml", []byte("a = [[\n"))
	f.Add("x", []byte("<<<<<<< a\n=======\n>>>>>>> b\n\u202e"))
	f.Add("x", []byte("k = \""+key(1)+"\"\n\xff\u200b"))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		r := &run{cfg: settings{MaxFileBytes: 100}, rules: choose(settings{}, nil, true), secrets: rs}
		hits, err := r.file(source{path: name, origin: name}, content)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range compare(both{after: hits}, schemas.Introduced) {
			d := c.diagnostic(nil)
			if p := d.Location.Range; d.Help == "" || d.Message == "" || (p != nil && (p.Start.Line < 0 || p.End.Line < p.Start.Line)) {
				t.Fatalf("%+v", d)
			}
		}
		// What is there on both sides is never new.
		if out := compare(both{before: hits, after: hits}, schemas.Introduced); len(out) != 0 {
			t.Fatalf("introduced by nothing: %+v", out)
		}
	})
}
