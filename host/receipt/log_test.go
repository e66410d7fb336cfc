package receipt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/schemas"
)

func record(id string) Record {
	return Record{Receipt: schemas.Receipt{ReceiptID: id, Kind: schemas.ReceiptEvaluate, PrivateOnly: true}}
}

func open(t *testing.T, dir string) *Log {
	t.Helper()
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestFindByPrefix(t *testing.T) {
	ctx := context.Background()
	l := open(t, t.TempDir())
	if _, err := l.Find(ctx, ""); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	for _, id := range []string{"aa11", "aa22", "bb33"} {
		if err := l.Append(ctx, record(id), map[string]string{"for": id}); err != nil {
			t.Fatal(err)
		}
	}
	for prefix, want := range map[string]string{"": "bb33", "aa2": "aa22", "bb33": "bb33"} {
		r, err := l.Find(ctx, prefix)
		if err != nil || r.Receipt.ReceiptID != want {
			t.Errorf("%q: %s %v", prefix, r.Receipt.ReceiptID, err)
		}
	}
	for _, prefix := range []string{"aa", "cc", "../x", "AA"} {
		if _, err := l.Find(ctx, prefix); err == nil {
			t.Errorf("%q was found", prefix)
		}
	}
	if raw, err := l.Evidence("aa22"); err != nil || !strings.Contains(string(raw), "aa22") {
		t.Fatal(string(raw), err)
	}
	if list, err := l.List(ctx, 2); err != nil || len(list) != 2 || list[1].Receipt.ReceiptID != "bb33" {
		t.Fatal(list, err)
	}
}

func TestTornLineIsPassedOver(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	l := open(t, dir)
	if err := l.Append(ctx, record("aa"), nil); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, logName), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"receipt":{"receiptId":"torn`)
	f.Close()
	if err := l.Append(ctx, record("bb"), nil); err != nil {
		t.Fatal(err)
	}
	list, err := l.List(ctx, 10)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
}

func TestFullDiskLeavesNoHalfRecord(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs: root (to mount a small tmpfs)")
	}
	ctx := context.Background()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	l := open(t, dir)
	var failed error
	n := 0
	for ; failed == nil && n < 1000; n++ {
		failed = l.Append(ctx, record(fmt.Sprintf("%04x", n)), nil)
	}
	if !errors.Is(failed, unix.ENOSPC) {
		t.Fatal(failed)
	}
	list, err := l.List(ctx, 1000)
	if err != nil || len(list) != n-1 {
		t.Fatalf("%d records of %d: %v", len(list), n-1, err)
	}
	b, err := os.ReadFile(filepath.Join(dir, logName))
	if err != nil || !strings.HasSuffix(string(b), "}\n") {
		t.Fatal("the log ends in the middle of a record")
	}
}

// TestProcessesAppendAtOnce runs writers in several processes and goroutines.
func TestProcessesAppendAtOnce(t *testing.T) {
	if dir := os.Getenv("RECEIPT_TEST_DIR"); dir != "" {
		l := open(t, dir)
		for i := range 20 {
			if err := l.Append(context.Background(), record(fmt.Sprintf("%x%02x", os.Getpid(), i)), nil); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run", "^TestProcessesAppendAtOnce$")
			cmd.Env = append(os.Environ(), "RECEIPT_TEST_DIR="+dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	list, err := open(t, dir).List(context.Background(), 1000)
	if err != nil || len(list) != 80 {
		t.Fatal(len(list), err)
	}
}
