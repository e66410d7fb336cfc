package report

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The members of SARIF 2.1.0 (OASIS, §3) that say where findings are and
// whether the run went well. Unknown members are passed over, as the standard
// asks of a reader.
type sarifLog struct {
	Version string     `json:"version"`
	Runs    []sarifRun `json:"runs"`
}

type sarifRun struct {
	Tool struct {
		Driver     sarifComponent   `json:"driver"`
		Extensions []sarifComponent `json:"extensions"`
	} `json:"tool"`
	Invocations []struct {
		Successful    *bool       `json:"executionSuccessful"`
		Notifications []sarifNote `json:"toolExecutionNotifications"`
		Configuration []sarifNote `json:"toolConfigurationNotifications"`
	} `json:"invocations"`
	ColumnKind string `json:"columnKind"`
	BaseIDs    map[string]struct {
		URI string `json:"uri"`
	} `json:"originalUriBaseIds"`
	Artifacts []struct {
		Location sarifArtifact `json:"location"`
	} `json:"artifacts"`
	Results  []sarifResult  `json:"results"`
	External jsontext.Value `json:"externalPropertyFileReferences"`
}

type sarifComponent struct {
	Rules []sarifRule `json:"rules"`
}

type sarifRule struct {
	ID      string `json:"id"`
	HelpURI string `json:"helpUri"`
	Default struct {
		Level string `json:"level"`
	} `json:"defaultConfiguration"`
	Messages map[string]sarifMessage `json:"messageStrings"`
	Short    sarifMessage            `json:"shortDescription"`
}

type sarifNote struct {
	Level   string       `json:"level"`
	Message sarifMessage `json:"message"`
}

type sarifMessage struct {
	Text      string   `json:"text"`
	ID        string   `json:"id"`
	Arguments []string `json:"arguments"`
}

type sarifArtifact struct {
	URI    string `json:"uri"`
	BaseID string `json:"uriBaseId"`
	Index  *int   `json:"index"`
}

type sarifResult struct {
	RuleID    string `json:"ruleId"`
	RuleIndex *int   `json:"ruleIndex"`
	Rule      struct {
		ID    string `json:"id"`
		Index *int   `json:"index"`
		In    struct {
			Index *int `json:"index"`
		} `json:"toolComponent"`
	} `json:"rule"`
	Kind      string       `json:"kind"`
	Level     string       `json:"level"`
	Message   sarifMessage `json:"message"`
	Locations []struct {
		Physical struct {
			Artifact sarifArtifact `json:"artifactLocation"`
			Region   *sarifRegion  `json:"region"`
		} `json:"physicalLocation"`
	} `json:"locations"`
	Suppressions []struct {
		Status string `json:"status"`
	} `json:"suppressions"`
}

type sarifRegion struct {
	StartLine   *int `json:"startLine"`
	StartColumn *int `json:"startColumn"`
	EndLine     *int `json:"endLine"`
	EndColumn   *int `json:"endColumn"`
}

// lenient reads JSON whose text may hold bytes that are no UTF-8.
func lenient() json.Options {
	return json.JoinOptions(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
}

func (r *Report) sarif(out []byte) error {
	var log sarifLog
	if err := json.Unmarshal([]byte(strings.TrimPrefix(string(out), "\ufeff")), &log, lenient()); err != nil {
		return fmt.Errorf("the output is no whole SARIF: %w", err)
	}
	if log.Version != "2.1.0" {
		return fmt.Errorf("the output says that it is SARIF %.20q; 2.1.0 is read", log.Version)
	}
	if len(log.Runs) == 0 {
		return errors.New("the SARIF holds no run")
	}
	for i := range log.Runs {
		if err := r.run(&log.Runs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (r *Report) run(run *sarifRun) error {
	for _, in := range run.Invocations {
		for _, n := range append(in.Notifications, in.Configuration...) {
			if n.Level == "error" {
				r.gap("the tool reports of itself: %s", Text(n.Message.Text, 300))
			}
		}
		if in.Successful != nil && !*in.Successful {
			r.gap("the tool says that its run did not succeed")
		}
	}
	if run.Results == nil {
		// §3.14.23: absent or null when the tool did not get so far as to look.
		r.gap("the SARIF holds no list of results")
	}
	if len(run.External) > 0 {
		r.gap("a part of the SARIF is in other files")
	}
	switch columns := map[string]string{"unicodeCodePoints": "runes", "utf16CodeUnits": "utf16"}[run.ColumnKind]; {
	case columns == "":
	case r.Columns != "" && r.Columns != columns:
		return errors.New("runs of the SARIF count columns in different ways")
	default:
		r.Columns = columns
	}
	for i := range run.Results {
		r.result(run, &run.Results[i])
	}
	return nil
}

func (r *Report) result(run *sarifRun, res *sarifResult) {
	switch res.Kind {
	case "", "fail", "open", "review":
	default: // pass, notApplicable, informational
		return
	}
	for _, s := range res.Suppressions {
		if s.Status == "" || s.Status == "accepted" {
			return
		}
	}
	rule := run.rule(res)
	f := nowhere()
	f.Rule, f.Help, f.Level = res.RuleID, "", res.Level
	if f.Rule == "" {
		f.Rule = res.Rule.ID
	}
	message := res.Message
	if rule != nil {
		if f.Rule == "" {
			f.Rule = rule.ID
		}
		if f.Level == "" {
			f.Level = rule.Default.Level
		}
		f.Help = rule.HelpURI
		if message.Text == "" && message.ID != "" {
			message.Text = rule.Messages[message.ID].Text
		}
		if message.Text == "" {
			message.Text = rule.Short.Text
		}
	}
	if f.Level == "" {
		f.Level = "warning" // §3.27.10
	}
	f.Message = message.Text
	for i, a := range message.Arguments {
		f.Message = strings.ReplaceAll(f.Message, fmt.Sprintf("{%d}", i), a)
		if i > 20 || len(f.Message) > 4*maxMessage {
			break
		}
	}
	if len(res.Locations) == 0 {
		r.add(f)
		return
	}
	l := res.Locations[0].Physical
	f.Path = run.path(l.Artifact)
	if g := l.Region; g != nil {
		f.Line, f.Column = less(g.StartLine, 1), less(g.StartColumn, 1)
		f.EndLine, f.EndColumn = less(g.EndLine, 1), less(g.EndColumn, 1)
	}
	r.add(f)
}

// less takes a tool's base off; what is not there or impossible is -1.
func less(n *int, base int) int {
	if n == nil || *n < base {
		return -1
	}
	return *n - base
}

func (run *sarifRun) rule(res *sarifResult) *sarifRule {
	rules := run.Tool.Driver.Rules
	if in := res.Rule.In.Index; in != nil && *in >= 0 && *in < len(run.Tool.Extensions) {
		rules = run.Tool.Extensions[*in].Rules
	}
	for _, index := range []*int{res.RuleIndex, res.Rule.Index} {
		if index != nil && *index >= 0 && *index < len(rules) {
			return &rules[*index]
		}
	}
	for i := range rules {
		if rules[i].ID == res.RuleID && res.RuleID != "" {
			return &rules[i]
		}
	}
	return nil
}

// path resolves an artifact's location as far as the log can tell it.
func (run *sarifRun) path(a sarifArtifact) string {
	if a.URI == "" && a.Index != nil && *a.Index >= 0 && *a.Index < len(run.Artifacts) {
		a = run.Artifacts[*a.Index].Location
	}
	p := uriPath(a.URI)
	if base := run.BaseIDs[a.BaseID].URI; base != "" && !strings.HasPrefix(p, "/") {
		p = strings.TrimSuffix(uriPath(base), "/") + "/" + p
	}
	return p
}

func uriPath(s string) string {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "" && u.Scheme != "file") {
		return s
	}
	return u.Path
}
