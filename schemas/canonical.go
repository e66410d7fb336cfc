package schemas

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Canonical rewrites a JSON value in canonical form (asp-wire, Digests): no
// white space, object keys sorted by code point at every depth, strings with
// the fewest escapes, numbers as RFC 8785 writes them.
func Canonical(data []byte) ([]byte, error) {
	lim := Limits{}.withDefaults()
	lim.MaxBytes = len(data)
	if err := scan(data, lim); err != nil {
		return nil, err
	}
	v := jsontext.Value(bytes.Clone(data))
	// RFC 8785 sorts by UTF-16 code units; asp-wire by code points. They differ
	// only where a key holds characters above U+FFFF beside ones from U+E000.
	if err := v.Canonicalize(); err != nil {
		return nil, decodeError(err)
	}
	if !bytes.ContainsFunc(v, func(r rune) bool { return r > 0xFFFF }) {
		return v, nil
	}
	return sortKeys(v)
}

// sortKeys orders the members of a canonical value by code point.
func sortKeys(v jsontext.Value) (jsontext.Value, error) {
	d := jsontext.NewDecoder(bytes.NewReader(v))
	var out bytes.Buffer
	if err := copySorted(d, &out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func copySorted(d *jsontext.Decoder, out *bytes.Buffer) error {
	switch d.PeekKind() {
	case '{':
		return copyObject(d, out)
	case '[':
		if _, err := d.ReadToken(); err != nil {
			return err
		}
		out.WriteByte('[')
		for i := 0; d.PeekKind() != ']'; i++ {
			if i > 0 {
				out.WriteByte(',')
			}
			if err := copySorted(d, out); err != nil {
				return err
			}
		}
		out.WriteByte(']')
		_, err := d.ReadToken()
		return err
	default:
		val, err := d.ReadValue()
		out.Write(val)
		return err
	}
}

func copyObject(d *jsontext.Decoder, out *bytes.Buffer) error {
	type member struct {
		key       string
		raw, body []byte
	}
	var members []member
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() != '}' {
		raw, err := d.ReadValue()
		if err != nil {
			return err
		}
		m := member{raw: bytes.Clone(raw)}
		key, err := jsontext.AppendUnquote(nil, raw)
		if err != nil {
			return err
		}
		m.key = string(key)
		var body bytes.Buffer
		if err := copySorted(d, &body); err != nil {
			return err
		}
		m.body = body.Bytes()
		members = append(members, m)
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	// Byte order of UTF-8 is code point order.
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.key, b.key) })
	out.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			out.WriteByte(',')
		}
		out.Write(m.raw)
		out.WriteByte(':')
		out.Write(m.body)
	}
	out.WriteByte('}')
	return nil
}

// Digest is sha256:<hex> over the canonical JSON of v.
func Digest(v any) (string, error) {
	b, err := Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode for a digest: %w", err)
	}
	return DigestRaw(b)
}

// DigestRaw is Digest of a value that is JSON already.
func DigestRaw(data []byte) (string, error) {
	c, err := Canonical(data)
	if err != nil {
		return "", fmt.Errorf("canonical form: %w", err)
	}
	sum := sha256.Sum256(c)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// BlobRefOf names bytes.
func BlobRefOf(b []byte) BlobRef {
	sum := sha256.Sum256(b)
	return BlobRef("blob:sha256:" + hex.EncodeToString(sum[:]))
}

// Hex returns the digest of a blob ref; false when it is not of the form
// blob:sha256:<64 lower-case hex digits>.
func (b BlobRef) Hex() (string, bool) {
	h, ok := strings.CutPrefix(string(b), "blob:sha256:")
	if !ok || len(h) != 64 || strings.Trim(h, "0123456789abcdef") != "" {
		return "", false
	}
	return h, true
}

// ValidPath checks the rule for paths of a ChangeSet: repo-relative,
// /-separated, UTF-8, no empty, . or .. segment, no leading /, no NUL, no
// backslash.
func ValidPath(p string) error {
	switch {
	case p == "":
		return fmt.Errorf("the path is empty")
	case !utf8.ValidString(p):
		return fmt.Errorf("the path %q is not UTF-8", p)
	case strings.ContainsAny(p, "\x00\\"):
		return fmt.Errorf("the path %q holds a NUL or a backslash", p)
	}
	for seg := range strings.SplitSeq(p, "/") {
		if seg == "" || seg == "." || seg == ".." {
			return fmt.Errorf("the path %q has the segment %q", p, seg)
		}
	}
	return nil
}
