package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/host/session"
	"github.com/aspis-dev/aspis/sandbox/egress"
)

// network gives a command the way out that the flags name, if any. What it gives
// back ends that.
func (a *app) network(b *bench, f runFlags, c *session.Command) (done func(), err error) {
	done = func() {}
	if len(f.allow) == 0 {
		if len(f.credentials) > 0 {
			return done, errors.New("--credential is for hosts that --allow names")
		}
		return done, nil
	}
	list, err := egress.ParseList(f.allow...)
	if err != nil {
		return done, fmt.Errorf("--allow: %w", err)
	}
	opt := egress.Options{Credentials: map[string]egress.Credential{}}
	for _, text := range f.credentials {
		host, name, ok := strings.Cut(text, "=")
		if !ok || host == "" || name == "" {
			return done, fmt.Errorf("--credential %q: give HOST=NAME, where NAME is a variable that holds the key", text)
		}
		value, ok := os.LookupEnv(name)
		if !ok || value == "" {
			return done, fmt.Errorf("--credential %s: there is no variable %s here", text, name)
		}
		opt.Credentials[host] = credentialOf(value)
	}
	if c.Egress, err = egress.New(list, opt); err != nil {
		return done, err
	}
	proxy := c.Egress
	bundle, err := proxy.Bundle()
	if err == nil && bundle != nil {
		c.Bundle, err = bundleFile(b.state, bundle)
	}
	if err != nil {
		return done, errors.Join(err, proxy.Close())
	}
	return func() {
		_ = proxy.Close() // its connections end with the command
		if c.Bundle != "" {
			_ = os.Remove(c.Bundle)
		}
	}, nil
}

// bundleFile writes certificates for everybody to read: a session runs under ids
// of its own.
func bundleFile(state string, bundle []byte) (string, error) {
	file, err := os.CreateTemp(state, "certificates-*.pem")
	if err != nil {
		return "", fmt.Errorf("write certificates for the session: %w", err)
	}
	_, err = file.Write(bundle)
	if err := errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("write certificates for the session: %w", err), os.Remove(file.Name()))
	}
	return file.Name(), nil
}

// credentialOf reads a key: a whole header ("X-Api-Key: …"), or what goes into
// Authorization as a bearer.
func credentialOf(value string) egress.Credential {
	name, rest, ok := strings.Cut(value, ": ")
	if ok && name != "" && !strings.ContainsAny(name, " \t") {
		return egress.Credential{Header: name, Value: rest}
	}
	return egress.Credential{Header: "Authorization", Value: "Bearer " + value}
}

// tellAttempts names what a command tried to reach and was not let.
func (a *app) tellAttempts(run *session.Run) {
	if run.Attempts == nil {
		return
	}
	seen := map[string]bool{}
	for _, t := range run.Attempts.Attempts {
		at := fmt.Sprintf("%s:%d", t.Host, t.Port)
		if t.Allowed || seen[at] || len(seen) >= 10 {
			continue
		}
		seen[at] = true
		fmt.Fprintf(a.err, "aspis: not let through to %s: %s\n", render.Escape(at), render.Escape(t.Why))
	}
}
