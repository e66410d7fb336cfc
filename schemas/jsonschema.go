package schemas

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

//go:embed json/*.json
var schemaFiles embed.FS

// schemaBase is where the files seem to lie, so that they can refer to each
// other by name. Nothing is ever fetched.
const schemaBase = "aspis:///schemas/"

// compiled holds every schema by its name: the names of the files' $defs,
// which are unique over all files.
type compiled map[string]*jsonschema.Schema

var compileSchemas = sync.OnceValues(func() (compiled, error) {
	files, err := schemaFiles.ReadDir("json")
	if err != nil {
		return nil, fmt.Errorf("list the embedded schemas: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	homes := map[string]string{}
	for _, f := range files {
		raw, err := schemaFiles.ReadFile(path.Join("json", f.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the embedded schema %s: %w", f.Name(), err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			return nil, fmt.Errorf("decode the embedded schema %s: %w", f.Name(), err)
		}
		if err := c.AddResource(schemaBase+f.Name(), doc); err != nil {
			return nil, fmt.Errorf("add the embedded schema %s: %w", f.Name(), err)
		}
		top, _ := doc.(map[string]any)
		defs, _ := top["$defs"].(map[string]any)
		for name := range defs {
			if other, twice := homes[name]; twice {
				return nil, fmt.Errorf("the schema %s is defined in %s and in %s", name, other, f.Name())
			}
			homes[name] = f.Name()
		}
	}
	all := compiled{}
	for name, file := range homes {
		s, err := c.Compile(schemaBase + file + "#/$defs/" + name)
		if err != nil {
			return nil, fmt.Errorf("compile the schema %s: %w", name, err)
		}
		all[name] = s
	}
	return all, nil
})

// SchemaFiles returns the JSON Schemas as they are shipped, by file name.
// Messages are the members of each file's $defs.
func SchemaFiles() (map[string][]byte, error) {
	files, err := schemaFiles.ReadDir("json")
	if err != nil {
		return nil, fmt.Errorf("list the embedded schemas: %w", err)
	}
	out := make(map[string][]byte, len(files))
	for _, f := range files {
		if out[f.Name()], err = schemaFiles.ReadFile(path.Join("json", f.Name())); err != nil {
			return nil, fmt.Errorf("read the embedded schema %s: %w", f.Name(), err)
		}
	}
	return out, nil
}

// SchemaNames lists the messages that ValidateSchema knows, sorted.
func SchemaNames() ([]string, error) {
	all, err := compileSchemas()
	return slices.Sorted(maps.Keys(all)), err
}

// ValidateSchema checks a JSON text against the schema of a message, named as
// in the files' $defs: "verdict", "receipt", "host-status", "assessment" and so
// on. It is independent of the Go types, which is what makes it worth having
// beside the decoders.
func ValidateSchema(name string, raw []byte) error {
	all, err := compileSchemas()
	if err != nil {
		return err
	}
	s, ok := all[name]
	if !ok {
		return fmt.Errorf("there is no schema named %q", name)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return fmt.Errorf("the %s is not JSON: %w", name, err)
	}
	err = s.Validate(v)
	var ve *jsonschema.ValidationError
	if errors.As(err, &ve) {
		return fmt.Errorf("the %s does not fit its schema: %s", name, deepest(ve))
	}
	return err
}

// deepest describes the innermost causes of a failed validation: where, and what.
func deepest(e *jsonschema.ValidationError) string {
	var out []string
	var walk func(*jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 && len(out) < 5 {
			text := e.Error()
			if _, after, ok := strings.Cut(text, "\n- "); ok {
				text = after
			}
			out = append(out, text)
		}
		for _, c := range e.Causes {
			walk(c)
		}
	}
	walk(e)
	return strings.Join(out, "; ")
}
