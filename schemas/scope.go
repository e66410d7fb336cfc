package schemas

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Names that a Scope may have instead of a list of paths.
const (
	ScopeChangeset = "changeset"
	ScopeWorkspace = "workspace"
)

// MarshalJSON writes the name, or {"paths": […]}.
func (s Scope) MarshalJSON() ([]byte, error) {
	if s.Name != "" {
		return json.Marshal(s.Name)
	}
	return json.Marshal(struct {
		Paths []string `json:"paths"`
	}{s.Paths})
}

// UnmarshalJSON accepts exactly the three forms of asp-wire.
func (s *Scope) UnmarshalJSON(b []byte) error {
	*s = Scope{}
	if jsontext.Value(b).Kind() == '"' {
		if err := json.Unmarshal(b, &s.Name); err != nil {
			return err
		}
		if s.Name != ScopeChangeset && s.Name != ScopeWorkspace {
			return fmt.Errorf("the scope is %.40q; use \"changeset\", \"workspace\" or {\"paths\": […]}", s.Name)
		}
		return nil
	}
	var o struct {
		Paths []string `json:"paths"`
	}
	if err := json.Unmarshal(b, &o, json.RejectUnknownMembers(true)); err != nil {
		return err
	}
	if len(o.Paths) == 0 {
		return errors.New("a scope of paths must name at least one")
	}
	s.Paths = o.Paths
	return nil
}
