package toolspec

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Preset is the description of a well-known tool with what installing it needs.
type Preset struct {
	Name  string `json:"-"`
	About string `json:"about"`
	URL   string `json:"url"`
	// Program is the name that is looked up on the machine that installs.
	Program string `json:"program"`
	// Runtime is "static" where the program needs nothing beside itself, or
	// "system" where it needs the machine's libraries or interpreters.
	Runtime string `json:"runtime"`
	// Version asks the tool for its version; VersionAt finds it in the answer.
	Version   []string `json:"version"`
	VersionAt string   `json:"versionAt,omitzero"`
	// Needs says in words what else must be there for the tool to be of use.
	Needs []string `json:"needs,omitzero"`
	// RunsCode is true where the tool executes code of the workspace, which can
	// then make it say what it likes.
	RunsCode bool `json:"runsCode,omitzero"`
	// MemoryMB is what it should be granted; 0 takes the host's default.
	MemoryMB int `json:"memoryMb,omitzero"`
	// OpenFiles likewise.
	OpenFiles int `json:"openFiles,omitzero"`
	// Tool is the description itself, without program and digest.
	Tool jsontext.Value `json:"tool"`
}

//go:embed presets/*.json
var presetFiles embed.FS

// Presets lists what comes with aspis, by name.
func Presets() ([]Preset, error) {
	files, err := presetFiles.ReadDir("presets")
	if err != nil {
		return nil, err
	}
	var out []Preset
	for _, f := range files {
		raw, err := presetFiles.ReadFile(path.Join("presets", f.Name()))
		if err != nil {
			return nil, err
		}
		p := Preset{Name: strings.TrimSuffix(f.Name(), ".json")}
		if err := json.Unmarshal(raw, &p, json.RejectUnknownMembers(true)); err != nil {
			return nil, fmt.Errorf("preset %s: %w", p.Name, err)
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Preset) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Find gives the preset of a name.
func Find(name string) (Preset, error) {
	all, err := Presets()
	if err != nil {
		return Preset{}, err
	}
	for _, p := range all {
		if p.Name == name {
			return p, nil
		}
	}
	return Preset{}, fmt.Errorf("there is no preset %.60q; aspis tool ls shows what there is", name)
}

// Describe makes the description for one installed program.
func (p Preset) Describe(program, digest string, version *Version) (*Tool, error) {
	var t Tool
	if err := json.Unmarshal(p.Tool, &t, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("preset %s: %w", p.Name, err)
	}
	t.Name, t.Program, t.Digest, t.Version = p.Name, program, digest, version
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("preset %s: %w", p.Name, err)
	}
	return &t, nil
}
