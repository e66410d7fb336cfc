package sandbox

import "fmt"

// Mode is how much may be claimed of a confinement, weakest first, as the
// host obligations of the protocol order them (section 3, assurance
// enforcement). There is no value for a boundary that the host does not
// control: a Runtime always gives one.
type Mode int

const (
	// ModeGated says that the host controls the boundary, but the process could write
	// the real worktree itself.
	ModeGated Mode = iota
	// ModeMediatedWrite says that the process has no way to write the real worktree;
	// other walls may be missing.
	ModeMediatedWrite
	// ModeIsolated says that every wall stands.
	ModeIsolated
)

var modeNames = [...]string{ModeGated: "gated", ModeMediatedWrite: "mediated-write", ModeIsolated: "isolated"}

// String gives the protocol's word.
func (m Mode) String() string {
	if m < 0 || int(m) >= len(modeNames) {
		return fmt.Sprintf("Mode(%d)", int(m))
	}
	return modeNames[m]
}

// MarshalText gives the protocol's word, and an error for a value that has none.
func (m Mode) MarshalText() ([]byte, error) {
	if m < 0 || int(m) >= len(modeNames) {
		return nil, fmt.Errorf("no assurance mode has number %d", int(m))
	}
	return []byte(modeNames[m]), nil
}

// UnmarshalText takes the protocol's word.
func (m *Mode) UnmarshalText(text []byte) error {
	for i, name := range modeNames {
		if string(text) == name {
			*m = Mode(i)
			return nil
		}
	}
	return fmt.Errorf("unknown assurance mode %q", text)
}
