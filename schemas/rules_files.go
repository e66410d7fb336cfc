package schemas

import (
	"bytes"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// manifestRefused are members by which a manifest would claim trust; it is a
// launch hint and nothing more (asp-wire, asp-server.json).
var manifestRefused = []string{"trusted", "authority", "gateAuthority", "trustRoot", "registry", "certification", "firstPartyAuthority"}

// DecodeManifest reads asp-server.json.
func DecodeManifest(raw []byte, lim Limits) (*Manifest, error) {
	if pointer, found := memberAmong(raw, manifestRefused); found {
		return nil, &DecodeError{Pointer: pointer, Detail: "is refused: a manifest grants no trust; that is for trusted configuration", Offset: -1}
	}
	return decodeMessage(raw, lim, func(m *Manifest) error {
		c := &checker{}
		oneOf(c, "/manifestVersion", m.ManifestVersion, ManifestVersion)
		c.nonEmpty("/server/id", m.Server.ID)
		c.nonEmpty("/server/version", m.Server.Version)
		atLeastOne(c, "/protocolVersions", m.ProtocolVersions)
		if !slices.Contains(m.ProtocolVersions, ProtocolVersion) {
			c.fail("/protocolVersions", "does not hold %q", ProtocolVersion)
		}
		atLeastOne(c, "/capabilities", m.Capabilities)
		for _, f := range m.Capabilities {
			oneOf(c, "/capabilities", f, Inspect, Check, Edit)
		}
		oneOf(c, "/entrypoint/transport", m.Entrypoint.Transport, "stdio")
		if !filepath.IsAbs(m.Entrypoint.Bin) {
			c.fail("/entrypoint/bin", "is %.200q; it must be absolute: nothing is looked up in PATH", m.Entrypoint.Bin)
		}
		c.nonEmpty("/artifact/fingerprint", m.Artifact.Fingerprint)
		if m.AccessExpectations.Environment.Inherit {
			c.fail("/accessExpectations/environment/inherit", "must be false")
		}
		return c.result()
	})
}

func memberAmong(raw []byte, names []string) (pointer string, found bool) {
	d := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	for {
		tok, err := d.ReadToken()
		if err != nil {
			return "", false
		}
		kind, n := d.StackIndex(d.StackDepth())
		if tok.Kind() == '"' && kind == '{' && n%2 == 1 && slices.Contains(names, tok.String()) {
			return string(d.StackPointer()), true
		}
	}
}
