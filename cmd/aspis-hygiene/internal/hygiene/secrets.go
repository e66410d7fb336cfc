package hygiene

import (
	"fmt"
	"strings"
	"sync"

	"github.com/zricethezav/gitleaks/v8/detect"
)

// secrets finds secrets by gitleaks' own rules. They are compiled once, in the
// background, while the host is still shaking hands.
type secrets struct {
	detector func() (*detect.Detector, error)
}

func newSecrets() *secrets {
	s := &secrets{detector: sync.OnceValues(func() (*detect.Detector, error) {
		d, err := detect.NewDetectorDefaultConfig()
		if err != nil {
			return nil, err
		}
		// A comment in the change must not silence the check of that change.
		d.IgnoreGitleaksAllow = true
		return d, nil
	})}
	go func() { _, _ = s.detector() }()
	return s
}

// scan finds the secrets of one text. A message never holds the secret itself.
func (s *secrets) scan(path string, content []byte) ([]hit, error) {
	d, err := s.detector()
	if err != nil {
		return nil, fmt.Errorf("compile the secret rules: %w", err)
	}
	text := string(content)
	lines := strings.SplitAfter(text, "\n")
	var hits []hit
	//nolint:staticcheck // the method that takes the type's new name comes with v9
	fragment := detect.Fragment{Raw: text, FilePath: path}
	for _, f := range d.Detect(fragment) {
		h := hit{rule: ruleSecret, path: path, line: f.StartLine, key: f.RuleID + "\x00" + f.Secret}
		h.message = fmt.Sprintf("%s: %s", strings.TrimSuffix(f.Description, "."), redact(f.Secret))
		if h.line < len(lines) {
			line := strings.TrimRight(lines[h.line], "\r\n")
			first, _, _ := strings.Cut(f.Secret, "\n")
			if at := strings.Index(line, first); at >= 0 && first != "" {
				h.start = utf16Len(line[:at])
				h.end = h.start + utf16Len(first)
			} else {
				h.end = utf16Len(line)
			}
		}
		hits = append(hits, h)
	}
	return hits, nil
}

// redact shows so little of a secret that it is of no use.
func redact(s string) string {
	shown := min(4, len(s)/4)
	return fmt.Sprintf("%s… (%d characters)", strings.ToValidUTF8(s[:shown], ""), len([]rune(s)))
}
