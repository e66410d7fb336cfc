package hygiene

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/go-json-experiment/json/jsontext"
	"gopkg.in/yaml.v3"
)

// scanSyntax parses files that their name says are JSON, YAML or TOML.
func scanSyntax(name string, content []byte) []hit {
	base := strings.ToLower(path.Base(name))
	switch path.Ext(base) {
	case ".json":
		if jsonWithComments(name, base) {
			return nil
		}
		return checkJSON(name, content)
	case ".yaml", ".yml":
		return checkYAML(name, content)
	case ".toml":
		return checkTOML(name, content)
	}
	return nil
}

// jsonWithComments lists the names by which tools keep JSON with comments.
func jsonWithComments(name, base string) bool {
	return strings.HasPrefix(base, "tsconfig") || strings.HasPrefix(base, "jsconfig") || strings.Contains(name, ".vscode/") ||
		strings.Contains(name, ".devcontainer/") || base == "devcontainer.json" || base == ".eslintrc.json" || base == "wrangler.json" || base == "deno.json"
}

func syntaxHit(rule, name string, line int, detail string) hit {
	return hit{rule: rule, path: name, line: max(line, 0), message: detail, key: name + "\x00" + detail}
}

func checkJSON(name string, content []byte) []hit {
	d := jsontext.NewDecoder(bytes.NewBuffer(bytes.TrimPrefix(content, []byte("\uFEFF"))))
	for n := 0; ; n++ {
		_, err := d.ReadToken()
		if errors.Is(err, io.EOF) && n > 0 {
			return nil
		}
		if err != nil {
			at := min(int(d.InputOffset()), len(content))
			return []hit{syntaxHit(ruleJSON, name, bytes.Count(content[:at], []byte("\n")), "not valid JSON: "+plain(err))}
		}
	}
}

func checkYAML(name string, content []byte) []hit {
	// Templates use the same ending and are no YAML before they are filled in.
	if bytes.Contains(content, []byte("{{")) || bytes.Contains(content, []byte("{%")) {
		return nil
	}
	d := yaml.NewDecoder(bytes.NewReader(content))
	for range 10_000 {
		var n yaml.Node
		err := d.Decode(&n)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return []hit{syntaxHit(ruleYAML, name, lineIn(err.Error())-1, "not valid YAML: "+plain(err))}
		}
	}
	return nil
}

func checkTOML(name string, content []byte) []hit {
	var v any
	_, err := toml.NewDecoder(bytes.NewReader(content)).Decode(&v)
	if err == nil {
		return nil
	}
	line := 0
	var pe toml.ParseError
	if errors.As(err, &pe) {
		line = pe.Position.Line - 1
	}
	return []hit{syntaxHit(ruleTOML, name, line, "not valid TOML: "+plain(err))}
}

var lineNumber = regexp.MustCompile(`line (\d+)`)

// lineIn finds the line that a parser's message names; 1 when it names none.
func lineIn(text string) int {
	m := lineNumber.FindStringSubmatch(text)
	if m == nil {
		return 1
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return 1
	}
	return n
}

// plain keeps the first line of a parser's message, without its prefix.
func plain(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	for _, prefix := range []string{"jsontext: ", "yaml: ", "toml: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	if len(text) > 200 {
		text = fmt.Sprintf("%.200s…", text)
	}
	return text
}
