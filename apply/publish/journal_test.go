package publish

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/aspis-dev/aspis/apply"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// FuzzJournal reads journals of any content: one that is taken names nothing that
// may not be written, and is the same when it is written again.
func FuzzJournal(f *testing.F) {
	j := journal{Version: journalVersion, ID: "20260102T030405-0a", Time: time.Unix(1, 0).UTC(), Dirs: []string{"d"}, Ops: []op{
		{Path: "a", Before: State{Mode: gitrepo.ModeFile, Blob: schemas.BlobRefOf(nil)}},
		{Path: "d/f", After: State{Mode: gitrepo.ModeExec, Blob: schemas.BlobRefOf([]byte("x"))}, Ino: 7, Over: true}}}
	b, digest, err := j.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(append(b, commitMark+digest+"\n"...))
	f.Add([]byte("aspis-journal 2 44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\n{}\n"))
	body := `{"version":1,"id":"1","time":"2026-01-02T03:04:05+07:00","ops":null,"dirs":[]}`
	f.Add(fmt.Appendf(nil, headFormat+"%s\n", len(body), fmt.Sprintf("%x", sha256.Sum256([]byte(body))), body))
	f.Fuzz(func(t *testing.T, data []byte) {
		j, committed, err := decodeJournal(data)
		if err != nil {
			return
		}
		for _, o := range j.Ops {
			if why := apply.Refusal(o.Path); why != "" {
				t.Fatalf("%q was taken: %s", o.Path, why)
			}
		}
		again, digest, err := j.encode()
		if err != nil {
			t.Fatal(err)
		}
		if committed {
			again = append(again, commitMark+digest+"\n"...)
		}
		same, sameCommitted, err := decodeJournal(again)
		if err != nil || committed != sameCommitted || !cmp.Equal(j, same, cmpopts.EquateEmpty()) {
			t.Fatalf("%v: %s", err, cmp.Diff(j, same))
		}
	})
}
