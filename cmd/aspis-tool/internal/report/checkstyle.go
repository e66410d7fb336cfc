package report

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/aspis-dev/aspis/cmd/internal/toolspec"
)

// checkstyle reads <checkstyle><file name><error …/></file></checkstyle>.
func (r *Report) checkstyle(f toolspec.Format, out []byte) error {
	// Some tools write bytes that no XML may hold; they stand in messages only.
	clean := strings.Map(func(c rune) rune {
		if c < 0x20 && c != '\n' && c != '\r' && c != '\t' {
			return -1
		}
		return c
	}, strings.ToValidUTF8(string(out), "?"))
	d := xml.NewDecoder(strings.NewReader(clean))
	d.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil }
	file, depth, whole := "", 0, false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the output is no whole XML: %w", err)
		}
		switch t := token.(type) {
		case xml.StartElement:
			depth++
			switch {
			case depth == 1 && t.Name.Local != "checkstyle":
				return fmt.Errorf("the output is the XML of %.40q, not of checkstyle", t.Name.Local)
			case depth == 2 && t.Name.Local == "file":
				file = attribute(t, "name")
			case depth == 3 && t.Name.Local == "error":
				m := nowhere()
				m.Path, m.Message, m.Level, m.Rule = file, attribute(t, "message"), attribute(t, "severity"), attribute(t, "source")
				m.Line, m.Column = digits(attribute(t, "line"), base(f.LineBase)), digits(attribute(t, "column"), base(f.ColumnBase))
				r.add(m)
			}
		case xml.EndElement:
			if depth--; depth == 0 {
				whole = true
			}
		}
	}
	if !whole {
		return errors.New("the output is no whole XML: it is empty or ends early")
	}
	return nil
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func digits(s string, base int) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return less(&n, base)
}
