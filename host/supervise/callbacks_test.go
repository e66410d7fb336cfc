package supervise

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/aspis-dev/aspis/schemas"
)

// TestBlobsGoOutAsTheWireHasThem holds what is written by hand to the type.
func TestBlobsGoOutAsTheWireHasThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.OneOf(
			rapid.SliceOfN(rapid.Byte(), 0, 60),
			rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) }),
			rapid.Just([]byte("line\r\n\ttab \"quoted\" back\\slash \x00\x1f\x7f é\n")),
		).Draw(t, "content")
		ref := schemas.BlobRefOf(content)
		var got schemas.Blob
		if err := schemas.Decode(appendBlob(nil, ref, content), &got, schemas.Limits{}); err != nil {
			t.Fatal(err)
		}
		if got.ID != ref {
			t.Fatalf("it is called %s, not %s", got.ID, ref)
		}
		back, err := schemas.NewBlob{Encoding: got.Encoding, Bytes: got.Bytes}.Content()
		if err != nil || schemas.BlobRefOf(back) != ref {
			t.Fatalf("%q came back as %q (%v)", content, back, err)
		}
	})
}
