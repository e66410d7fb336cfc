package publish

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/apply"
)

const (
	journalName    = "journal"
	journalVersion = 1

	// maxJournal bounds a journal, in bytes, and maxOps the paths of one publish.
	maxJournal = 256 << 20
	maxOps     = 500_000
)

// op is one path of a publish, in the order in which they are carried out.
type op struct {
	Path   string `json:"path"`
	Before State  `json:"before,omitzero"`
	After  State  `json:"after,omitzero"`
	Over   bool   `json:"over,omitzero"` // it takes the place of a directory without files
	Ino    uint64 `json:"ino,omitzero"`  // of the staged file
}

// journal is what recovery goes by. Ops that delete come first, then Dirs are
// made, then the other ops follow.
type journal struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Time    time.Time `json:"time"`
	Exec    bool      `json:"ignoreExec,omitzero"` // Options.IgnoreExec
	Dirs    []string  `json:"dirs,omitzero"`       // made for this publish, parents first
	Ops     []op      `json:"ops"`
}

// A journal is a line with its length and digest, the JSON, and once it is
// committed a line that repeats the digest.
const (
	headFormat = "aspis-journal %d %s\n"
	commitMark = "commit "
)

// errTorn says that a journal is not whole: it was never durable, so that
// nothing was done that it tells of.
var errTorn = errors.New("the journal is torn")

func (j *journal) encode() ([]byte, string, error) {
	body, err := json.Marshal(j)
	if err != nil {
		return nil, "", fmt.Errorf("encode the journal: %w", err)
	}
	sum := sha256.Sum256(body)
	digest := hex.EncodeToString(sum[:])
	return append(append(fmt.Appendf(nil, headFormat, len(body), digest), body...), '\n'), digest, nil
}

// decodeJournal reads a journal and whether it was committed.
func decodeJournal(b []byte) (j journal, committed bool, err error) {
	head, rest, ok := bytes.Cut(b, []byte("\n"))
	var size int
	var digest string
	if !ok || len(head) > 128 {
		return j, false, errTorn
	}
	if n, err := fmt.Sscanf(string(head)+"\n", headFormat, &size, &digest); err != nil || n != 2 || size < 0 || size >= len(rest) {
		return j, false, errTorn
	}
	body := rest[:size]
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != digest || rest[size] != '\n' {
		return j, false, errTorn
	}
	if err := json.Unmarshal(body, &j); err != nil {
		return j, false, fmt.Errorf("decode the journal: %w", err)
	}
	if j.Version != journalVersion {
		return j, false, fmt.Errorf("the journal has the version %d; use an aspis that knows it", j.Version)
	}
	if err := j.check(); err != nil {
		return j, false, err
	}
	return j, strings.HasPrefix(string(rest[size+1:]), commitMark+digest+"\n"), nil
}

// check refuses what this program never writes: a journal may have come with the
// directory that it lies in.
func (j *journal) check() error {
	if len(j.ID) > 64 || strings.Trim(j.ID, "0123456789abcdefT-") != "" {
		return fmt.Errorf("the journal has the id %.80q", j.ID)
	}
	if len(j.Ops) > maxOps || len(j.Dirs) > maxOps {
		return fmt.Errorf("the journal names more than %d paths", maxOps)
	}
	for _, o := range j.Ops {
		if why := apply.Refusal(o.Path); why != "" {
			return fmt.Errorf("the journal names %q: %s", o.Path, why)
		}
	}
	for _, d := range j.Dirs {
		if why := apply.Refusal(d); why != "" {
			return fmt.Errorf("the journal names %q: %s", d, why)
		}
	}
	return nil
}

// readJournal reads the journal in a directory. One that is not there is torn.
func readJournal(dir int) (j journal, committed bool, err error) {
	fd, err := unix.Openat(dir, journalName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return j, false, errTorn
	}
	if err != nil {
		return j, false, fmt.Errorf("open the journal: %w", err)
	}
	f := os.NewFile(uintptr(fd), journalName)
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxJournal+1))
	if err != nil {
		return j, false, fmt.Errorf("read the journal: %w", err)
	}
	if len(b) > maxJournal {
		return j, false, fmt.Errorf("the journal has more than %d bytes", maxJournal)
	}
	return decodeJournal(b)
}

// writeJournal writes a journal that is not committed. It is not yet durable.
func writeJournal(dir int, j *journal) (f *os.File, digest string, err error) {
	b, digest, err := j.encode()
	if err != nil {
		return nil, "", err
	}
	if len(b) > maxJournal {
		return nil, "", fmt.Errorf("the journal would have more than %d bytes", maxJournal)
	}
	fd, err := unix.Openat(dir, journalName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, "", full("write the journal", err)
	}
	f = os.NewFile(uintptr(fd), journalName)
	// Room for the commit record is taken now: a disk that fills up meanwhile must
	// not be what decides.
	pad := make([]byte, len(commitMark)+len(digest)+1)
	for i := range pad {
		pad[i] = ' '
	}
	if _, err := f.Write(append(b, pad...)); err != nil {
		f.Close()
		return nil, "", full("write the journal", err)
	}
	return f, digest, nil
}

// commit makes a publish one that happened.
func commit(f *os.File, digest string) error {
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	mark := commitMark + digest + "\n"
	if _, err := f.WriteAt([]byte(mark), st.Size()-int64(len(mark))); err != nil {
		return full("commit", err)
	}
	if err := f.Sync(); err != nil {
		return full("commit", err)
	}
	return nil
}
