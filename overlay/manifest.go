package overlay

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// File is one file of a snapshot. Size is in bytes.
type File struct {
	Path string
	Mode uint32 // git's
	OID  gitrepo.OID
	Blob schemas.BlobRef
	Size int64
}

// record is what is kept of one layer: where its files lie, and either all of
// them or, over a base, what changed.
type record struct {
	layer string // directory of the layer, relative to the store
	base  string // key of the layer below; "" for none
	files []File // by path
	gone  []string
}

const manifestHead = "aspis-manifest 1"

// encode writes a record as lines, with a digest of them as the last one.
func (r record) encode() []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, manifestHead)
	fmt.Fprintf(&b, "layer %s\nbase %s\n", strconv.Quote(r.layer), strconv.Quote(r.base))
	for _, f := range r.files {
		hex, _ := f.Blob.Hex()
		fmt.Fprintf(&b, "%o %s %s %d %s\n", f.Mode, f.OID, hex, f.Size, strconv.Quote(f.Path))
	}
	for _, p := range r.gone {
		fmt.Fprintf(&b, "gone %s\n", strconv.Quote(p))
	}
	sum := sha256.Sum256(b.Bytes())
	fmt.Fprintf(&b, "sum %s\n", hex.EncodeToString(sum[:]))
	return b.Bytes()
}

var errManifest = errors.New("the manifest is damaged")

// decode reads what encode wrote; anything else is an error.
func decode(raw []byte) (record, error) {
	var r record
	at := bytes.LastIndex(bytes.TrimSuffix(raw, []byte("\n")), []byte("\n")) + 1
	sum := sha256.Sum256(raw[:at])
	if string(raw[at:]) != "sum "+hex.EncodeToString(sum[:])+"\n" {
		return r, errManifest
	}
	s := bufio.NewScanner(bytes.NewReader(raw[:at]))
	s.Buffer(nil, 1<<20)
	for n := 0; s.Scan(); n++ {
		if err := r.line(n, s.Text()); err != nil {
			return r, err
		}
	}
	if r.layer == "" {
		return r, errManifest
	}
	return r, s.Err()
}

func (r *record) line(n int, line string) (err error) {
	word, rest, _ := strings.Cut(line, " ")
	switch {
	case n == 0:
		if line != manifestHead {
			return errManifest
		}
	case word == "layer":
		r.layer, err = strconv.Unquote(rest)
	case word == "base":
		r.base, err = strconv.Unquote(rest)
	case word == "gone":
		var p string
		p, err = strconv.Unquote(rest)
		r.gone = append(r.gone, p)
	default:
		f := strings.SplitN(line, " ", 5)
		if len(f) != 5 {
			return errManifest
		}
		mode, err1 := strconv.ParseUint(f[0], 8, 32)
		size, err2 := strconv.ParseInt(f[3], 10, 64)
		path, err3 := strconv.Unquote(f[4])
		err = errors.Join(err1, err2, err3)
		r.files = append(r.files, File{Path: path, Mode: uint32(mode), OID: gitrepo.OID(f[1]), Blob: schemas.BlobRef("blob:sha256:" + f[2]), Size: size})
	}
	if err != nil {
		return errors.Join(errManifest, err)
	}
	return nil
}

// maxManifest bounds what is read of a manifest, in bytes.
const maxManifest = 1 << 30

func readRecord(path string) (record, error) {
	f, err := os.Open(path)
	if err != nil {
		return record{}, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err != nil {
		return record{}, err
	}
	r, err := decode(raw)
	if err != nil {
		return record{}, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func writeRecord(path string, r record) error {
	if err := renameio.WriteFile(path, r.encode(), 0o600); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	return nil
}

func sortFiles(files []File) {
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
}

func findFile(files []File, path string) (File, bool) {
	i, ok := slices.BinarySearchFunc(files, path, func(f File, p string) int { return strings.Compare(f.Path, p) })
	if !ok {
		return File{}, false
	}
	return files[i], true
}
