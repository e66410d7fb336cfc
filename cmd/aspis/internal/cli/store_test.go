package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aspis-dev/aspis/overlay"
)

// storeRun runs one command on the state directory that the environment names.
func storeRun(t *testing.T, args ...string) (out string, code int, err error) {
	t.Helper()
	var b bytes.Buffer
	a := &app{version: "dev", out: &b, err: &b, in: strings.NewReader("")}
	root := a.root()
	root.SetArgs(append([]string{"store"}, args...))
	err = root.ExecuteContext(context.Background())
	return b.String(), a.code, err
}

func TestStoreIsListedCollectedAndVerified(t *testing.T) {
	state := t.TempDir()
	t.Setenv("ASPIS_STATE_DIR", state)
	store, err := overlay.Open(filepath.Join(state, "overlay"))
	if err != nil {
		t.Fatal(err)
	}
	project := filepath.Join(t.TempDir(), "pro\x1b[31mject")
	if err := os.Mkdir(project, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(project+"/a", []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	w, err := store.CreateWorkArea(context.Background(), overlay.WorkSource{Dir: project}, overlay.WorkOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := store.PutBlob(context.Background(), strings.NewReader("blob"), 10)
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := storeRun(t, "ls")
	if err != nil || !strings.Contains(out, "work area") || !strings.Contains(out, w.ID()) || !strings.Contains(out, "blobs") || strings.Contains(out, "\x1b") {
		t.Fatalf("%v\n%q", err, out)
	}
	out, _, err = storeRun(t, "ls", "--format", "json")
	if err != nil || !strings.Contains(out, `"kind": "frozen"`) {
		t.Fatalf("%v\n%s", err, out)
	}
	// What the work area lies over stays, and the blob is too fresh.
	out, _, err = storeRun(t, "gc", "--max-size", "0")
	if err != nil || !strings.HasPrefix(out, "removed 0,") {
		t.Fatalf("%v\n%s", err, out)
	}
	out, code, err := storeRun(t, "verify")
	if err != nil || code != 0 || !strings.Contains(out, "1 frozen states, 1 work areas") || !strings.HasSuffix(out, "0 problems\n") {
		t.Fatalf("%d %v\n%s", code, err, out)
	}
	if err := w.Drop(context.Background()); err != nil {
		t.Fatal(err)
	}
	out, _, err = storeRun(t, "gc")
	if err != nil || out != "removed 1\n" {
		t.Fatalf("%v\n%s", err, out)
	}
	h, _ := ref.Hex()
	if err := os.WriteFile(filepath.Join(state, "overlay", "blobs", "sha256", h[:2], h[2:]), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, code, err = storeRun(t, "verify", "--format", "json")
	if err != nil || code != ExitDeny || !strings.Contains(out, "has other bytes") {
		t.Fatalf("%d %v\n%s", code, err, out)
	}
	for _, bad := range [][]string{{"gc", "--max-size", "x"}, {"gc", "--max-size", "9T", "--unused", "1h"}, {"gc", "--max-size", "-1"}, {"gc", "--max-size", ""}, {"ls", "x"}} {
		if _, _, err := storeRun(t, bad...); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "7": 7, "1k": 1024, "3M": 3 << 20, "10G": 10 << 30, "2T": 2 << 40} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q: %d %v", text, got, err)
		}
	}
	for _, text := range []string{"", "G", "1.5G", "-1", "1GB", "9999999999999T", "1 G"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536 << 20: "1.5 GiB", 5 << 50: "5120.0 TiB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}
