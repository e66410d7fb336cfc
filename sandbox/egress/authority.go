package egress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"time"
)

// Roots are certificate authorities.
type Roots = *x509.CertPool

// authority signs for the hosts that have a credential. It is made for one
// proxy, its key is never written, and what trusts it trusts it for these hosts
// alone, which its certificate says (RFC 5280, 4.2.1.10).
type authority struct {
	pem   []byte
	hosts map[string]tls.Certificate
}

// lifetime is how long certificates of a run are good for; more than any run.
const lifetime = 7 * 24 * time.Hour

func newAuthority(hosts map[string]Credential, longest time.Duration) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	root := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "aspis, one run"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(max(lifetime, 2*longest)),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		PermittedDNSDomainsCritical: true,
	}
	for host := range hosts {
		if a, err := netip.ParseAddr(host); err == nil {
			root.PermittedIPRanges = append(root.PermittedIPRanges, &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())})
		} else {
			root.PermittedDNSDomains = append(root.PermittedDNSDomains, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	a := &authority{pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), hosts: map[string]tls.Certificate{}}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	for host := range hosts {
		leaf := &x509.Certificate{
			SerialNumber: serial(), Subject: pkix.Name{CommonName: "aspis"}, NotBefore: root.NotBefore, NotAfter: root.NotAfter,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}
		if ip := net.ParseIP(host); ip != nil {
			leaf.IPAddresses = []net.IP{ip}
		} else {
			leaf.DNSNames = []string{host}
		}
		signed, err := x509.CreateCertificate(rand.Reader, leaf, root, &leafKey.PublicKey, key)
		if err != nil {
			return nil, err
		}
		a.hosts[host] = tls.Certificate{Certificate: [][]byte{signed, der}, PrivateKey: leafKey}
	}
	return a, nil
}

func serial() *big.Int {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never fails
	return new(big.Int).SetBytes(b[:])
}

// config ends TLS for one host. HTTP/2 is not offered: what is inside is read
// by a server that bounds version 1.
func (a *authority) config(host string) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{a.hosts[host]}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
}

// bundles are where distributions keep the public authorities, in one file.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

const maxBundle = 4 << 20

// Bundle gives the public authorities of the machine, so far as it has any,
// with the run's own after them, as PEM. It is nil where no host has a
// credential, and the sandbox then needs no file.
func (p *Proxy) Bundle() ([]byte, error) {
	if p.ca == nil {
		return nil, nil
	}
	for _, name := range bundles {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("public authorities: %w", err)
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, maxBundle+1))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if len(b) > maxBundle {
			return nil, fmt.Errorf("%s is over %d bytes", name, maxBundle)
		}
		return append(append(b, '\n'), p.ca.pem...), nil
	}
	return p.ca.pem, nil
}
