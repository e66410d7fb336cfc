package report

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/aspis-dev/aspis/cmd/internal/toolspec"
)

// mapped reads JSON documents by the description's pointers.
func (r *Report) mapped(f toolspec.Format, out []byte) error {
	documents := [][]byte{bytes.TrimPrefix(out, []byte("\ufeff"))}
	if f.Format == "jsonlines" {
		documents = documents[:0]
		for line := range bytes.Lines(out) {
			if len(bytes.TrimSpace(line)) > 0 {
				documents = append(documents, line)
			}
		}
	}
	if len(documents) == 0 || len(bytes.TrimSpace(documents[0])) == 0 {
		return fmt.Errorf("the output is empty; it should be JSON")
	}
	ignore, err := compile(f.Ignore)
	if err != nil {
		return err
	}
	for i, d := range documents {
		if f.Format == "jsonlines" && matches(ignore, string(bytes.TrimSpace(d))) {
			continue
		}
		var v any
		if err := json.Unmarshal(d, &v, lenient()); err != nil {
			return fmt.Errorf("document %d of the output is no whole JSON: %w", i+1, err)
		}
		found, err := items([]any{v}, steps(f.Items))
		if err != nil {
			return err
		}
		for _, trail := range found {
			r.item(f, trail)
		}
		if f.Problems == "" {
			continue
		}
		problems, err := items([]any{v}, steps(f.Problems))
		if err != nil {
			return err
		}
		for _, trail := range problems {
			said, _ := json.Marshal(trail[len(trail)-1], json.Deterministic(true))
			r.gap("the tool reports of itself: %s", Text(string(said), 300))
		}
	}
	return nil
}

func steps(pointer string) []string {
	pointer = strings.Trim(pointer, "/")
	if pointer == "" {
		return nil
	}
	parts := strings.Split(pointer, "/")
	for i, p := range parts {
		parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(p)
	}
	return parts
}

// items follows a pointer from the last value of a trail; what it yields are the
// trails from the root to each finding. A member that is missing or null holds
// no finding; any other value that cannot be gone into is an error, for it is
// not what the description says.
func items(trail []any, rest []string) ([][]any, error) {
	last := trail[len(trail)-1]
	if last == nil {
		return nil, nil
	}
	if len(rest) == 0 {
		return [][]any{trail}, nil
	}
	var members []any
	switch v := last.(type) {
	case []any:
		if rest[0] == "*" {
			members = v
		} else if i, err := strconv.Atoi(rest[0]); err == nil && i >= 0 && i < len(v) {
			members = v[i : i+1]
		}
	case map[string]any:
		if rest[0] == "*" {
			for _, k := range slices.Sorted(keys(v)) {
				members = append(members, v[k])
			}
		} else if m, ok := v[rest[0]]; ok {
			members = []any{m}
		}
	default:
		return nil, fmt.Errorf("the output has %T where %q should be", last, rest[0])
	}
	var out [][]any
	for _, m := range members {
		more, err := items(append(slices.Clip(trail), m), rest[1:])
		if err != nil {
			return nil, err
		}
		if out = append(out, more...); len(out) > MaxFindings {
			break
		}
	}
	return out, nil
}

func keys(m map[string]any) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// item reads one finding.
func (r *Report) item(f toolspec.Format, trail []any) {
	m := nowhere()
	get := func(pointer string) any {
		if pointer == "" {
			return nil
		}
		return follow(trail, steps(pointer))
	}
	if f.Fields.Only != "" && get(f.Fields.Only) != true {
		return
	}
	m.Path, m.Rule, m.Message = text(get(f.Fields.Path)), text(get(f.Fields.Rule)), text(get(f.Fields.Message))
	m.Level, m.Help = text(get(f.Fields.Severity)), text(get(f.Fields.Help))
	m.Line, m.EndLine = number(get(f.Fields.Line), base(f.LineBase)), number(get(f.Fields.EndLine), base(f.LineBase))
	m.Column, m.EndColumn = number(get(f.Fields.Column), base(f.ColumnBase)), number(get(f.Fields.EndColumn), base(f.ColumnBase))
	m.Offset, m.EndOffset = number(get(f.Fields.Offset), 0), number(get(f.Fields.EndOffset), 0)
	r.add(m)
}

// follow gives the value at a relative pointer, or nil.
func follow(trail []any, rest []string) any {
	for len(rest) > 0 && rest[0] == ".." {
		if len(trail) < 2 {
			return nil
		}
		trail, rest = trail[:len(trail)-1], rest[1:]
	}
	v := trail[len(trail)-1]
	for _, step := range rest {
		switch x := v.(type) {
		case map[string]any:
			v = x[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

func text(v any) string {
	switch x := v.(type) {
	case string:
		return x
	case float64:
		return strconv.FormatFloat(x, 'f', -1, 64)
	case bool:
		return strconv.FormatBool(x)
	case []any: // parts of a text
		var b strings.Builder
		for _, p := range x {
			b.WriteString(text(p))
		}
		return b.String()
	case map[string]any:
		for _, k := range []string{"content", "text", "value"} {
			if s, ok := x[k].(string); ok {
				return s
			}
		}
	}
	return ""
}

// number reads a count, written as a number or as digits, and takes its base
// off.
func number(v any, base int) int {
	var n float64
	switch x := v.(type) {
	case float64:
		n = x
	case string:
		p, err := strconv.Atoi(x)
		if err != nil {
			return -1
		}
		n = float64(p)
	default:
		return -1
	}
	if n != math.Trunc(n) || n < float64(base) || n > math.MaxInt32 {
		return -1
	}
	return int(n) - base
}
