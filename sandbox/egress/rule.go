package egress

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// DefaultPort is the port of a rule that names none.
const DefaultPort = 443

const (
	maxRules = 256
	maxName  = 253 // RFC 1035, 2.3.4, without the final dot
	maxLabel = 63
)

// Rule names one destination: a host name, all names below one, an address or a
// range of addresses, always with one port.
type Rule struct {
	name   string       // exact, or the suffix with its leading dot
	below  bool         // all names that end in name
	prefix netip.Prefix // instead of a name
	port   uint16
}

// ParseRule reads "host[:port]". The host is a name ("api.example.org"), a
// wildcard for all names below one ("*.example.org", not example.org itself),
// an address ("192.0.2.7", "[2001:db8::1]:8443") or a range ("10.1.0.0/16").
// The port is DefaultPort where none is given. Names are ASCII: an
// international name is written in its xn-- form.
func ParseRule(text string) (Rule, error) {
	r, err := parseRule(text)
	if err != nil {
		return Rule{}, fmt.Errorf("egress rule %q: %w", text, err)
	}
	return r, nil
}

func parseRule(text string) (Rule, error) {
	host, port, err := splitPort(text)
	if err != nil {
		return Rule{}, err
	}
	r := Rule{port: port}
	bare := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.Contains(host, "/") {
		p, err := netip.ParsePrefix(bare)
		if err != nil {
			return Rule{}, errors.New("not a range of addresses")
		}
		if p != p.Masked() || p.Addr().Is4In6() {
			return Rule{}, fmt.Errorf("the range is written %s", p.Masked())
		}
		if p.Bits() == 0 {
			return Rule{}, errors.New("a list names destinations, and this is all of them")
		}
		r.prefix = p
		return r, nil
	}
	if a, err := netip.ParseAddr(bare); err == nil {
		if a.Zone() != "" {
			return Rule{}, errors.New("an address with a zone belongs to one link of one machine")
		}
		a = a.Unmap()
		r.prefix = netip.PrefixFrom(a, a.BitLen())
		return r, nil
	}
	if suffix, ok := strings.CutPrefix(host, "*."); ok {
		if !strings.Contains(strings.TrimSuffix(suffix, "."), ".") {
			return Rule{}, errors.New("a wildcard needs a suffix of two labels or more")
		}
		name, err := canonicalName(suffix)
		r.name, r.below = "."+name, true
		return r, err
	}
	r.name, err = canonicalName(host)
	return r, err
}

// splitPort takes the port off. A colon in an address without brackets is the
// address's.
func splitPort(text string) (host string, port uint16, err error) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 || strings.HasSuffix(text, "]") || strings.Count(text, ":") > 1 && !strings.HasPrefix(text, "[") {
		return text, DefaultPort, nil
	}
	port, err = parsePort(text[i+1:])
	return text[:i], port, err
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("%q is not a port from 1 to 65535", text)
	}
	return uint16(n), nil
}

// canonicalName gives a host name in the one form in which names are compared.
// A name whose last label begins with a digit is refused: programs take
// 127.1, 0x7f.1 and 2130706433 for addresses.
func canonicalName(text string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	if name == "" || len(name) > maxName {
		return "", errors.New("not a host name")
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabel || label[0] == '-' || label[len(label)-1] == '-' {
			return "", errors.New("not a host name")
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return "", errors.New("not a host name in ASCII")
			}
		}
	}
	if last := name[strings.LastIndexByte(name, '.')+1:]; last[0] >= '0' && last[0] <= '9' {
		return "", errors.New("neither a host name nor an address in its usual form")
	}
	return name, nil
}

// String gives the rule in its canonical form, which ParseRule takes.
func (r Rule) String() string {
	host := r.name
	switch {
	case r.below:
		host = "*" + r.name
	case r.name == "" && r.prefix.IsSingleIP():
		host = r.prefix.Addr().String()
	case r.name == "":
		host = r.prefix.String()
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(int(r.port))
}

func (r Rule) allowsName(name string, port uint16) bool {
	if r.name == "" || r.port != port {
		return false
	}
	if r.below {
		return strings.HasSuffix(name, r.name) && len(name) > len(r.name)
	}
	return name == r.name
}

// namesAddress is for an address that is written as one, or resolved to.
func (r Rule) namesAddress(a netip.Addr, port uint16) bool {
	return r.name == "" && r.port == port && r.prefix.Contains(a)
}

// List is what may be reached. The zero value allows nothing.
type List struct{ rules []Rule }

// NewList sorts the rules and drops what is there twice. It holds 256 at most.
func NewList(rules ...Rule) (List, error) {
	if len(rules) > maxRules {
		return List{}, fmt.Errorf("%d egress rules are more than %d", len(rules), maxRules)
	}
	byText := func(a, b Rule) int { return strings.Compare(a.String(), b.String()) }
	sorted := slices.SortedFunc(slices.Values(rules), byText)
	return List{slices.Compact(sorted)}, nil
}

// ParseList reads rules as ParseRule does.
func ParseList(texts ...string) (List, error) {
	if len(texts) > maxRules {
		return List{}, fmt.Errorf("%d egress rules are more than %d", len(texts), maxRules)
	}
	rules := make([]Rule, 0, len(texts))
	for _, t := range texts {
		r, err := ParseRule(t)
		if err != nil {
			return List{}, err
		}
		rules = append(rules, r)
	}
	return NewList(rules...)
}

// Strings gives the rules in canonical form and order.
func (l List) Strings() []string {
	out := make([]string, 0, len(l.rules))
	for _, r := range l.rules {
		out = append(out, r.String())
	}
	return out
}

// Digest identifies the list's meaning, as "sha256:<hex>".
func (l List) Digest() string {
	sum := sha256.Sum256([]byte("aspis egress 1\n" + strings.Join(l.Strings(), "\n")))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (l List) allowsName(name string, port uint16) bool {
	return slices.ContainsFunc(l.rules, func(r Rule) bool { return r.allowsName(name, port) })
}

func (l List) namesAddress(a netip.Addr, port uint16) bool {
	return slices.ContainsFunc(l.rules, func(r Rule) bool { return r.namesAddress(a, port) })
}
