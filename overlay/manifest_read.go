package overlay

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// manifest reads one layer's manifest piece by piece. It is safe for several
// goroutines.
type manifest struct {
	from   io.ReaderAt
	dir    string // the store's, for errors
	path   string // also
	base   string
	count  int
	blocks []block
	gone   []string
	blobs  func() ([]byte, error)

	mu     sync.Mutex
	cached map[int][]File
}

// block is where some files lie in the manifest.
type block struct {
	first  string
	offset int64
	size   int
	sum    [sha256.Size]byte
}

const (
	// maxSection bounds what is read of a manifest at once, in bytes.
	maxSection = 1 << 30

	// maxCached bounds the blocks that are kept decoded.
	maxCached = 64
)

var errManifest = errors.New("the manifest is not what was written")

// openManifest reads what finds the rest. The file is for the caller to close,
// when the manifest is needed no more.
func (s *Store) openManifest(id string) (*os.File, *manifest, error) {
	path := s.manifestPath(id)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		err = errManifest
	}
	var m *manifest
	if err == nil {
		var st os.FileInfo
		if st, err = f.Stat(); err == nil {
			m, err = readIndex(f, st.Size())
		}
	}
	if err != nil {
		f.Close()
		return nil, nil, (&manifest{dir: s.dir, path: path}).failed(err)
	}
	m.dir, m.path = s.dir, path
	return f, m, nil
}

// failed says what is wrong with the manifest, or with reading it.
func (m *manifest) failed(err error) error {
	if errors.Is(err, errManifest) {
		return &DamagedError{Dir: m.dir, Detail: fmt.Sprintf("%q is not what was written", m.path)}
	}
	return fmt.Errorf("read %q: %w", m.path, err)
}

func readIndex(from io.ReaderAt, size int64) (*manifest, error) {
	end := size - trailerSize
	if end < int64(len(manifestHead)) {
		return nil, errManifest
	}
	trailer, err := readSection(from, end, trailerSize)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(trailer[:trailerSize-sha256.Size]); !bytes.Equal(sum[:], trailer[trailerSize-sha256.Size:]) {
		return nil, errManifest
	}
	head, err := readSection(from, 0, int64(len(manifestHead)))
	if err != nil {
		return nil, err
	}
	if string(head) != manifestHead {
		return nil, errManifest
	}
	var at, length [3]int64
	for i := 2; i >= 0; i-- {
		n := binary.BigEndian.Uint64(trailer[8*i:])
		if n > maxSection || int64(n) > end-int64(len(manifestHead)) {
			return nil, errManifest
		}
		end -= int64(n)
		at[i], length[i] = end, int64(n)
	}
	section := func(i int) ([]byte, error) {
		b, err := readSection(from, at[i], length[i])
		if err != nil {
			return nil, err
		}
		if sum := sha256.Sum256(b); !bytes.Equal(sum[:], trailer[24+i*sha256.Size:][:sha256.Size]) {
			return nil, errManifest
		}
		return b, nil
	}
	m := &manifest{from: from, cached: map[int][]File{}}
	m.blobs = sync.OnceValues(func() ([]byte, error) { return section(1) })
	index, err := section(2)
	if err != nil {
		return nil, err
	}
	gone, err := section(0)
	if err != nil {
		return nil, err
	}
	if length[1] != int64(m.readIndex(index, end))*blobRow || !m.readGone(gone) {
		return nil, errManifest
	}
	return m, nil
}

func readSection(from io.ReaderAt, at, n int64) ([]byte, error) {
	b := make([]byte, n)
	_, err := from.ReadAt(b, at)
	if errors.Is(err, io.EOF) {
		err = errManifest // it is shorter than it says
	}
	return b, err
}

// readIndex gives the number of files, or -1 where the index makes no sense.
// The blocks must fill the file up to end.
func (m *manifest) readIndex(raw []byte, end int64) int {
	d := decoder{raw}
	m.base = d.text()
	count := d.number(maxFiles)
	at := int64(len(manifestHead))
	for len(d.rest) > 0 {
		b := block{first: d.text(), offset: at, size: d.number(maxSection)}
		copy(b.sum[:], d.bytes(sha256.Size))
		at += int64(b.size)
		m.blocks = append(m.blocks, b)
	}
	sorted := slices.IsSortedFunc(m.blocks, func(a, b block) int { return strings.Compare(a.first, b.first) })
	if d.rest == nil || at != end || !sorted || len(m.blocks) != (count+blockFiles-1)/blockFiles {
		return -1
	}
	m.count = count
	return count
}

func (m *manifest) readGone(raw []byte) bool {
	d := decoder{raw}
	n := d.number(maxFiles)
	for range n {
		if d.rest == nil {
			return false
		}
		m.gone = append(m.gone, d.text())
	}
	return d.rest != nil && len(d.rest) == 0 && slices.IsSorted(m.gone)
}

// decoder reads what the append functions wrote. After a mistake its rest is
// nil, and everything it gives is empty.
type decoder struct{ rest []byte }

func (d *decoder) number(limit uint64) int {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || v > limit {
		d.rest = nil
		return 0
	}
	d.rest = d.rest[n:]
	return int(v)
}

func (d *decoder) bytes(n int) []byte {
	if d.rest == nil || n > len(d.rest) {
		d.rest = nil
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) text() string { return string(d.bytes(d.number(maxSection))) }

func (d *decoder) file() File {
	f := File{Mode: uint32(d.number(0o177777))}
	f.OID = gitrepo.OID(hex.EncodeToString(d.bytes(d.number(64))))
	f.Blob = schemas.BlobRef("blob:sha256:" + hex.EncodeToString(d.bytes(sha256.Size)))
	f.Size = int64(d.number(1 << 62))
	f.Path = d.text()
	return f
}

// block decodes the files of a block.
func (m *manifest) block(i int) ([]File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if files, ok := m.cached[i]; ok {
		return files, nil
	}
	b := m.blocks[i]
	raw, err := readSection(m.from, b.offset, int64(b.size))
	if err != nil {
		return nil, m.failed(err)
	}
	files := make([]File, 0, blockFiles)
	d := decoder{raw}
	for len(d.rest) > 0 {
		files = append(files, d.file())
	}
	want := min(blockFiles, m.count-i*blockFiles)
	if sha256.Sum256(raw) != b.sum || d.rest == nil || len(files) != want || files[0].Path != b.first || !sortedFiles(files) {
		return nil, m.failed(errManifest)
	}
	for n := range m.cached {
		if len(m.cached) < maxCached {
			break
		}
		delete(m.cached, n)
	}
	m.cached[i] = files
	return files, nil
}

// sortedFiles reports whether each path is greater than the one before.
func sortedFiles(files []File) bool {
	for i := 1; i < len(files); i++ {
		if files[i-1].Path >= files[i].Path {
			return false
		}
	}
	return true
}

// file gives the file of a number in path order.
func (m *manifest) file(n int) (File, error) {
	if n >= m.count {
		return File{}, m.failed(errManifest)
	}
	files, err := m.block(n / blockFiles)
	if err != nil {
		return File{}, err
	}
	return files[n%blockFiles], nil
}

// seek gives the number of the first file whose path is not less than path.
func (m *manifest) seek(path string) (int, error) {
	after := sort.Search(len(m.blocks), func(i int) bool { return m.blocks[i].first > path })
	if after == 0 {
		return 0, nil
	}
	files, err := m.block(after - 1)
	if err != nil {
		return 0, err
	}
	i, _ := slices.BinarySearchFunc(files, path, byPath)
	return (after-1)*blockFiles + i, nil
}

func (m *manifest) lookup(path string) (File, bool, error) {
	n, err := m.seek(path)
	if err != nil || n == m.count {
		return File{}, false, err
	}
	f, err := m.file(n)
	return f, err == nil && f.Path == path, err
}

func (m *manifest) isGone(path string) bool {
	_, ok := slices.BinarySearch(m.gone, path)
	return ok
}

// holding lists the layer's files with a content, in path order, at most limit
// of them (0 means all).
func (m *manifest) holding(ref schemas.BlobRef, limit int) ([]File, error) {
	sum, err := rawDigest(ref)
	if err != nil {
		return nil, err
	}
	rows, err := m.blobs()
	if err != nil {
		return nil, m.failed(err)
	}
	row := func(i int) []byte { return rows[i*blobRow:][:blobRow] }
	var out []File
	for i := sort.Search(m.count, func(i int) bool { return bytes.Compare(row(i)[:8], sum[:8]) >= 0 }); i < m.count && bytes.Equal(row(i)[:8], sum[:8]); i++ {
		f, err := m.file(int(binary.BigEndian.Uint32(row(i)[8:])))
		if err != nil {
			return nil, err
		}
		if f.Blob != ref {
			continue // another digest that begins alike
		}
		if out = append(out, f); len(out) == limit {
			break
		}
	}
	return out, nil
}
