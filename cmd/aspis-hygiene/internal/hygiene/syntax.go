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

const (
	// maxParsed and maxPieces bound what is parsed as YAML or TOML, in bytes and
	// in values, about: the parsers build the whole document, at some 200 bytes a
	// value, and running out of memory would take the provider down.
	maxParsed = 16 << 20
	maxPieces = 1 << 20
	// maxNesting bounds brackets within brackets; TOML's parser recurses.
	maxNesting = 1000
)

// syntaxRule tells by a file's name which syntax it should have.
func syntaxRule(name string) string {
	switch path.Ext(strings.ToLower(name)) {
	case ".json", ".jsonc":
		return ruleJSON
	case ".yaml", ".yml":
		return ruleYAML
	case ".toml":
		return ruleTOML
	}
	return ""
}

// parsed parses a file that its name says is JSON, YAML or TOML. skipped tells
// why one was left out. Values are never put into messages: they may be secret.
func parsed(name, origin string, content []byte) (hits []hit, skipped string) {
	rule := syntaxRule(name)
	if rule == "" {
		return nil, ""
	}
	if rule != ruleJSON && (len(content) > maxParsed || pieces(content) > maxPieces) {
		return nil, fmt.Sprintf("it has over %d bytes or %d values, too many to be parsed", maxParsed, maxPieces)
	}
	line, why := -1, ""
	switch {
	case rule == ruleJSON:
		line, why = brokenJSON(name, content)
	case deeperThan(content, maxNesting):
		why = fmt.Sprintf("brackets are nested deeper than %d", maxNesting)
	case rule == ruleYAML:
		line, why = brokenYAML(content)
	default:
		line, why = brokenTOML(content)
	}
	if why == "" || (rule != ruleTOML && templated(content)) {
		return nil, ""
	}
	h := hit{rule: rule, path: name, key: origin, message: "not valid " + strings.ToUpper(strings.TrimPrefix(rule, "invalid-")) + ": " + why}
	if line >= 0 {
		h.place = newLayout(content).whole(line)
	}
	return []hit{h}, ""
}

// templated reports whether a text has places to be filled in: it is no JSON or
// YAML before that. ${{ is not one, but an expression of CI files that stand as
// they are.
func templated(content []byte) bool {
	return bytes.Contains(content, []byte("{%")) || bytes.Count(content, []byte("{{")) > bytes.Count(content, []byte("${{"))
}

// pieces counts what may separate values.
func pieces(content []byte) int {
	n := 0
	for _, c := range content {
		switch c {
		case ',', ':', '\n', '[', '{', '&':
			n++
		}
	}
	return n
}

func deeperThan(content []byte, limit int) bool {
	depth := 0
	for _, c := range content {
		switch c {
		case '[', '{':
			if depth++; depth > limit {
				return true
			}
		case ']', '}':
			depth = max(depth-1, 0)
		}
	}
	return false
}

// commented lists the names by which tools keep JSON with comments.
func commented(name string) bool {
	base := strings.ToLower(path.Base(name))
	slashed := "/" + strings.ToLower(name)
	for _, prefix := range []string{"tsconfig", "jsconfig", "devcontainer", ".eslintrc", ".swcrc", ".babelrc", "wrangler", "deno", "api-extractor", "turbo", "biome", "renovate", "typedoc", "language-configuration"} {
		if strings.HasPrefix(base, prefix) {
			return true
		}
	}
	return path.Ext(base) == ".jsonc" || strings.HasSuffix(base, ".code-workspace") || strings.Contains(slashed, "/.vscode/") ||
		strings.Contains(slashed, "/.devcontainer/") || strings.Contains(slashed, "/.zed/")
}

func brokenJSON(name string, content []byte) (line int, why string) {
	content = bytes.TrimPrefix(content, []byte("\uFEFF"))
	if commented(name) {
		content = plainJSON(content)
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(content))
	ended := int64(-1) // where the last whole value ended
	for {
		outside := d.StackDepth() == 0
		_, err := d.ReadToken()
		switch {
		case errors.Is(err, io.EOF) && ended >= 0 && outside:
			return 0, ""
		case errors.Is(err, io.EOF):
			return 0, "there is no value"
		case err != nil:
			return lineAt(content, d.InputOffset()), plain(err)
		case outside && ended >= 0 && !bytes.Contains(content[ended:d.InputOffset()], []byte("\n")):
			// A value a line is a stream, which many tools keep under this name.
			return lineAt(content, d.InputOffset()), "there is more after the value"
		}
		if d.StackDepth() == 0 {
			ended = d.InputOffset()
		}
	}
}

func lineAt(content []byte, offset int64) int {
	return bytes.Count(content[:min(int(offset), len(content))], []byte("\n"))
}

// plainJSON blanks comments and trailing commas; every byte keeps its place.
func plainJSON(in []byte) []byte {
	out := bytes.Clone(in)
	comma := -1 // of a comma that nothing but space and comments follow
	for i := 0; i < len(out); i++ {
		switch c := out[i]; {
		case c == '"':
			comma = -1
			for i++; i < len(out) && out[i] != '"'; i++ {
				if out[i] == '\\' {
					i++
				}
			}
		case c == '/' && i+1 < len(out) && (out[i+1] == '/' || out[i+1] == '*'):
			i = blankComment(out, i)
		case c == ',':
			comma = i
		case (c == ']' || c == '}') && comma >= 0:
			out[comma], comma = ' ', -1
		case c != ' ' && c != '\t' && c != '\r' && c != '\n':
			comma = -1
		}
	}
	return out
}

// blankComment overwrites the comment that begins at i and returns its last
// byte. One that does not end is left, so that it is found to be broken.
func blankComment(out []byte, i int) int {
	end := len(out)
	if out[i+1] == '/' {
		if n := bytes.IndexByte(out[i:], '\n'); n >= 0 {
			end = i + n
		}
	} else {
		n := bytes.Index(out[i+2:], []byte("*/"))
		if n < 0 {
			return i + 1
		}
		end = i + 2 + n + 2
	}
	for j := i; j < end; j++ {
		if out[j] != '\n' && out[j] != '\r' {
			out[j] = ' '
		}
	}
	return end - 1
}

func brokenYAML(content []byte) (line int, why string) {
	d := yaml.NewDecoder(bytes.NewReader(content))
	for {
		// A node keeps aliases as they are: nothing expands here.
		var n yaml.Node
		err := d.Decode(&n)
		if errors.Is(err, io.EOF) {
			return 0, ""
		}
		if err != nil {
			return lineIn(err.Error()) - 1, plain(err)
		}
	}
}

func brokenTOML(content []byte) (line int, why string) {
	var v map[string]any
	_, err := toml.NewDecoder(bytes.NewReader(content)).Decode(&v)
	if err == nil {
		return 0, ""
	}
	var pe toml.ParseError
	if errors.As(err, &pe) {
		return pe.Position.Line - 1, plain(errors.New(pe.Message))
	}
	return 0, plain(err)
}

var (
	lineNumber = regexp.MustCompile(`line (\d+)`)
	quoted     = regexp.MustCompile(`"[^"]{4,}"?|\x60[^\x60]{4,}\x60?`)
)

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

// plain keeps the first line of a parser's message without its prefix, without
// its line number, which moves, and without what it quotes of the file.
func plain(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	for _, prefix := range []string{"jsontext: ", "yaml: ", "toml: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	if m := lineNumber.FindStringIndex(text); m != nil && m[0] == 0 {
		text = strings.TrimPrefix(text[m[1]:], ": ")
	}
	text = quoted.ReplaceAllString(text, "“…”")
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}
