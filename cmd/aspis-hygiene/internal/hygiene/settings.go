package hygiene

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// defaultMaxFile is the size above which a file is reported, in bytes.
const defaultMaxFile = 5 << 20

// settings are what trusted configuration may set. It comes with the request from
// the host; nothing in the repository adds to it.
type settings struct {
	MaxFileBytes int64                       `json:"maxFileBytes,omitzero"`
	Disable      []string                    `json:"disable,omitzero"`
	Severity     map[string]schemas.Severity `json:"severity,omitzero"`
}

// readConfig reads a configuration; an unknown member, rule or severity is an
// error, since a misspelt one would otherwise leave a gate other than meant.
func readConfig(raw jsontext.Value) (settings, error) {
	c := settings{MaxFileBytes: defaultMaxFile}
	if len(raw) > 0 {
		if err := schemas.Decode(raw, &c, schemas.Limits{}); err != nil {
			return c, fmt.Errorf("configuration: %w", err)
		}
	}
	for _, name := range c.Disable {
		if err := known(name); err != nil {
			return c, fmt.Errorf("configuration: disable: %w", err)
		}
	}
	for name, severity := range c.Severity {
		if err := known(name); err != nil {
			return c, fmt.Errorf("configuration: severity: %w", err)
		}
		if !slices.Contains([]schemas.Severity{schemas.SeverityError, schemas.SeverityWarning, schemas.SeverityInfo}, severity) {
			return c, fmt.Errorf("configuration: severity of %s is %.40q; use error, warning or info", name, string(severity))
		}
	}
	if c.MaxFileBytes <= 0 {
		return c, errors.New("configuration: maxFileBytes must be above 0")
	}
	return c, nil
}

func known(name string) error {
	if _, ok := rules[name]; ok {
		return nil
	}
	return fmt.Errorf("there is no rule %.60q; the rules are %s", name, strings.Join(ruleNames(), ", "))
}

// selection is which rules a check applies.
type selection struct {
	on map[string]bool
	// missing are rules that were asked for and do not exist here, or that need
	// a snapshot where there is none.
	missing []string
}

// choose picks the rules: all that are not disabled, or those asked for by
// name, with or without the source before it.
func choose(c settings, asked []string, snapshot bool) selection {
	s := selection{on: map[string]bool{}}
	want := ruleNames()
	if len(asked) > 0 {
		want = nil
		for _, name := range asked {
			want = append(want, strings.TrimPrefix(name, Source+"/"))
		}
	}
	for _, name := range want {
		def, ok := rules[name]
		switch {
		case !ok, def.needsSnapshot && !snapshot:
			if len(asked) > 0 {
				s.missing = append(s.missing, name)
			}
		case !slices.Contains(c.Disable, name):
			s.on[name] = true
		}
	}
	return s
}

// names lists the rules that are on.
func (s selection) names() []string {
	out := []string{}
	for _, name := range ruleNames() {
		if s.on[name] {
			out = append(out, name)
		}
	}
	return out
}
