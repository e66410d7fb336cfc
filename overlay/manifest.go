package overlay

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

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

// delta is what one layer holds: all files of a tree or, over another
// snapshot, those that changed and the paths that went. Both are in path order.
type delta struct {
	base  string // key of the snapshot below; "" for none
	files []File
	gone  []string
}

// A manifest is one file, made so that a path or a blob is found by reading a
// few kilobytes of it, whatever the size of the tree:
//
//	head     the line manifestHead
//	blocks   of blockFiles files each, in path order
//	gone     paths, in order
//	blobs    of each file, by digest: its first 8 bytes, then the file's number in 4
//	index    base, number of files, and for each block its first path, its
//	         length and its sha256
//	trailer  lengths of gone, blobs and index (8 bytes each), the sha256 of
//	         each, and the sha256 of the trailer up to there
//
// Numbers inside are varints, texts and ids go behind their length. Whatever is
// used is first compared with its digest, and the trailer's is its own.
const (
	manifestHead = "aspis manifest 2\n"
	blockFiles   = 128
	blobRow      = 12
	trailerSize  = 3*8 + 4*sha256.Size

	// maxFiles bounds the files of a manifest, so that a number fits in a row.
	maxFiles = 1 << 24
)

// writeManifest writes a layer's manifest as a new file. It is not synced.
func writeManifest(path string, d delta) (err error) {
	if len(d.files) > maxFiles {
		return &TreeError{Path: "", Detail: fmt.Sprintf("is the root of over %d files", maxFiles)}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			err = fmt.Errorf("write the manifest: %w", err)
		}
	}()
	w := bufio.NewWriterSize(f, 256<<10)
	if err := encode(w, d); err != nil {
		return err
	}
	return w.Flush()
}

func encode(w io.Writer, d delta) error {
	if _, err := io.WriteString(w, manifestHead); err != nil {
		return err
	}
	index := appendText(nil, d.base)
	index = binary.AppendUvarint(index, uint64(len(d.files)))
	var block []byte
	for part := range slices.Chunk(d.files, blockFiles) {
		block = block[:0]
		for _, f := range part {
			var err error
			if block, err = appendFile(block, f); err != nil {
				return err
			}
		}
		sum := sha256.Sum256(block)
		index = appendText(index, part[0].Path)
		index = binary.AppendUvarint(index, uint64(len(block)))
		index = append(index, sum[:]...)
		if _, err := w.Write(block); err != nil {
			return err
		}
	}
	gone := binary.AppendUvarint(nil, uint64(len(d.gone)))
	for _, p := range d.gone {
		gone = appendText(gone, p)
	}
	blobs, err := blobRows(d.files)
	if err != nil {
		return err
	}
	var trailer []byte
	for _, section := range [][]byte{gone, blobs, index} {
		trailer = binary.BigEndian.AppendUint64(trailer, uint64(len(section)))
		if _, err := w.Write(section); err != nil {
			return err
		}
	}
	for _, section := range [][]byte{gone, blobs, index} {
		sum := sha256.Sum256(section)
		trailer = append(trailer, sum[:]...)
	}
	sum := sha256.Sum256(trailer)
	_, err = w.Write(append(trailer, sum[:]...))
	return err
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendFile(b []byte, f File) ([]byte, error) {
	oid, err := hex.DecodeString(string(f.OID))
	if err != nil {
		return nil, fmt.Errorf("note %q: odd object id %q", f.Path, f.OID)
	}
	sum, err := rawDigest(f.Blob)
	if err != nil {
		return nil, fmt.Errorf("note %q: %w", f.Path, err)
	}
	b = binary.AppendUvarint(b, uint64(f.Mode))
	b = appendText(b, string(oid))
	b = append(b, sum...)
	b = binary.AppendUvarint(b, uint64(f.Size))
	return appendText(b, f.Path), nil
}

func rawDigest(ref schemas.BlobRef) ([]byte, error) {
	h, ok := ref.Hex()
	if !ok {
		return nil, fmt.Errorf("%q is not a blob ref", ref)
	}
	return hex.DecodeString(h)
}

// blobRows sorts the files by the digest of their content, equal ones by path.
func blobRows(files []File) ([]byte, error) {
	rows := make([][blobRow]byte, len(files))
	for i, f := range files {
		sum, err := rawDigest(f.Blob)
		if err != nil {
			return nil, err
		}
		copy(rows[i][:8], sum)
		binary.BigEndian.PutUint32(rows[i][8:], uint32(i))
	}
	slices.SortFunc(rows, func(a, b [blobRow]byte) int { return slices.Compare(a[:], b[:]) })
	return slices.Concat(asSlices(rows)...), nil
}

func asSlices(rows [][blobRow]byte) [][]byte {
	out := make([][]byte, len(rows))
	for i := range rows {
		out[i] = rows[i][:]
	}
	return out
}

func byPath(f File, p string) int { return strings.Compare(f.Path, p) }

func findFile(files []File, path string) (File, bool) {
	i, ok := slices.BinarySearchFunc(files, path, byPath)
	if !ok {
		return File{}, false
	}
	return files[i], true
}
