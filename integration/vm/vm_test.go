package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aspis-dev/aspis/integration/vm/matrix"
)

// TestArchive lets cpio read what the kernel is given.
func TestArchive(t *testing.T) {
	if _, err := exec.LookPath("cpio"); err != nil {
		t.Skip("needs: cpio, to read an archive by another program")
	}
	var a archive
	a.dir("modules")
	a.file("modules/a.ko", []byte("first"))
	a.file("init", []byte("12345678"))
	dir := t.TempDir()
	cmd := exec.Command("cpio", "-id", "--quiet")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(string(a.bytes()))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, want := range map[string]string{"modules/a.ko": "first", "init": "12345678"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s is %q, %v", name, b, err)
		}
	}
}

// TestJudgeFindsLies: a machine that says more or less than it must is found out.
func TestJudgeFindsLies(t *testing.T) {
	c, ok := matrix.Find("userns-none-root")
	if !ok {
		t.Fatal("no such cell")
	}
	doctor := `{"mode":"mediated-write","machine":[],"walls":[{"name":"user-namespace","standing":false,"seen":"x","fix":"user.max_user_namespaces"}]}`
	report := matrix.Report{
		Cell: c.Name, Doctor: matrix.Command{Code: 2, Stdout: doctor},
		Check:   matrix.Command{Stdout: `{"decision":"allow","assurance":{"mode":"mediated-write"}}`},
		Require: matrix.Command{Code: 2, Stdout: `{"decision":"indeterminate","assurance":{"mode":"mediated-write"}}`},
	}
	if res := judge(c, report, nil); len(res.Wrong) > 0 {
		t.Fatalf("an honest report: %v", res.Wrong)
	}
	for name, lie := range map[string]func(*matrix.Report){
		"another mode": func(r *matrix.Report) { r.Doctor.Stdout = strings.Replace(doctor, "mediated-write", "isolated", 1) },
		"another wall": func(r *matrix.Report) { r.Doctor.Stdout = strings.Replace(doctor, "user-namespace", "seccomp", 1) },
		"no remedy":    func(r *matrix.Report) { r.Doctor.Stdout = strings.Replace(doctor, "user.max", "", 1) },
		"exit code":    func(r *matrix.Report) { r.Doctor.Code = 0 },
		"an open gate": func(r *matrix.Report) {
			r.Require = matrix.Command{Stdout: `{"decision":"allow","assurance":{"mode":"isolated"}}`}
		},
		"too much a mode": func(r *matrix.Report) {
			r.Check.Stdout = strings.Replace(r.Check.Stdout, "mediated-write", "isolated", 1)
		},
		"a fault":         func(r *matrix.Report) { r.Fault = "it" },
		"another machine": func(r *matrix.Report) { r.Cell = "v2-root" },
		"no JSON":         func(r *matrix.Report) { r.Check.Stdout = "" },
		"tests unasked":   func(r *matrix.Report) { r.Tests = []matrix.Outcome{{Package: "x", Passed: []string{"y"}}} },
		"failed tests":    func(r *matrix.Report) { r.Tests = []matrix.Outcome{{Package: "x", Code: 1}} },
	} {
		r := report
		lie(&r)
		if res := judge(c, r, nil); len(res.Wrong) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}
