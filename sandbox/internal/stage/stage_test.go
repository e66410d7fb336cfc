package stage

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// first runs the test program as the first stage with the given input.
func first(t *testing.T, input []byte, files ...*os.File) (out, errOut string, code int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", Marker)
	cmd.Env = []string{"ONLY=this"}
	cmd.Stdin = bytes.NewReader(input)
	cmd.ExtraFiles = files
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	_ = cmd.Run() // the code is what tells
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

func encode(t *testing.T, h Header) []byte {
	t.Helper()
	b, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFirstStageBecomesTheProgram(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("SKIPPED: no sh")
	}
	extra, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	for _, keep := range []bool{false, true} {
		h := Header{Path: sh, Args: []string{"name of mine", "-c", `cat; echo "$0 $1 $ONLY"; test -e /proc/self/fd/3 && echo kept; exit 7`, "zero", ""}, KeepFiles: keep}
		input := append(append(encode(t, h), Go), "what follows\n"...)
		out, errOut, code := first(t, input, extra)
		want := Ready + "what follows\nzero  this\n"
		if keep {
			want += "kept\n"
		}
		if out != want || code != 7 {
			t.Errorf("keep %v: code %d, output %q, error %q", keep, code, out, errOut)
		}
	}
}

func TestFirstStageLetGo(t *testing.T) {
	h := encode(t, Header{Path: "/bin/sh", Args: []string{"sh", "-c", "echo never"}})
	for name, input := range map[string][]byte{
		"nothing":     {},
		"half a size": h[:2],
		"half":        h[:len(h)/2],
		"no go":       h,
		"not go":      append(slices.Clone(h), 'x'),
	} {
		out, _, code := first(t, input)
		if code != 125 || strings.Contains(out, "never") {
			t.Errorf("%s: code %d, output %q", name, code, out)
		}
	}
}

func TestFirstStageRefuses(t *testing.T) {
	good := encode(t, Header{Path: "/bin/sh", Args: []string{"sh", "-c", "echo never"}, Filter: make([]byte, 8)})
	// word changes one of: size, flags, filter bytes, arguments, string bytes.
	word := func(i int, v uint32) []byte {
		b := slices.Clone(good)
		binary.NativeEndian.PutUint32(b[4*i:], v)
		return append(b, make([]byte, 64)...)
	}
	for name, input := range map[string][]byte{
		"size of nothing":      word(0, 0),
		"size of too much":     word(0, 1<<31),
		"filter beyond":        word(2, 1<<20),
		"filter to overflow":   word(2, 1<<32-8),
		"filter of parts":      word(2, 7),
		"no arguments":         word(3, 0),
		"too many arguments":   word(3, 5000),
		"more than there are":  word(3, 4),
		"strings beyond":       word(4, 1<<20),
		"strings to overflow":  word(4, 1<<32-1),
		"no such program":      encode(t, Header{Path: "/no/such", Args: []string{"x"}}),
		"a broken filter":      encode(t, Header{Path: "/bin/sh", Args: []string{"x"}, Filter: bytes.Repeat([]byte{0xff}, 8)}),
		"strings without zero": append(slices.Clone(good[:len(good)-1]), 'x'),
	} {
		out, _, code := first(t, input)
		if code != 125 || !strings.HasPrefix(out, Refused) {
			t.Errorf("%s: code %d, output %q", name, code, out)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, h := range map[string]Header{
		"no arguments":       {Path: "/x"},
		"too many arguments": {Path: "/x", Args: make([]string, 5000)},
		"zero byte":          {Path: "/x", Args: []string{"a\x00b"}},
		"too long":           {Path: "/x", Args: []string{strings.Repeat("x", 2<<20)}},
	} {
		if _, err := h.Encode(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestMarkerElsewhere has the marker among other arguments: no first stage.
func TestMarkerElsewhere(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^$", Marker)
	cmd.Stdin = strings.NewReader("")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), Refused) {
		t.Errorf("%v: %s", err, out)
	}
}
