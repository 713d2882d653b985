package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// TLS are the files of a listener, all in PEM. With none of them it speaks plain HTTP.
type TLS struct {
	Cert     string `mapstructure:"cert"` // chain, its own certificate first
	Key      string `mapstructure:"key"`
	ClientCA string `mapstructure:"client_ca"` // clients must show a certificate of these authorities; empty = none asked for
}

// FrontendTLS is the frontend's listener and its way to workers.
type FrontendTLS struct {
	TLS     `mapstructure:",squash"`
	Workers ClientTLS `mapstructure:"workers"`
}

// ClientTLS are the files for connections to others that speak TLS.
type ClientTLS struct {
	CA   string `mapstructure:"ca"`   // authorities of their certificates, empty = those of the system
	Cert string `mapstructure:"cert"` // what is shown to them, empty = nothing
	Key  string `mapstructure:"key"`
}

// On tells whether the listener speaks TLS.
func (t TLS) On() bool { return t.Cert != "" || t.Key != "" || t.ClientCA != "" }

// Scheme is that of the listener's address.
func (t TLS) Scheme() string {
	if t.On() {
		return "https"
	}
	return "http"
}

func (t TLS) validate() error {
	switch {
	case t.On() && t.Cert == "":
		return errors.New("tls.cert: is missing; name the PEM file with the certificate")
	case t.On() && t.Key == "":
		return errors.New("tls.key: is missing; name the PEM file with the private key")
	}
	return nil
}

func (t FrontendTLS) validate() error {
	if err := t.Workers.validate("tls.workers"); err != nil {
		return err
	}
	return t.TLS.validate()
}

func (c ClientTLS) validate(at string) error {
	if (c.Cert == "") != (c.Key == "") {
		return fmt.Errorf("%s: cert and key belong together", at)
	}
	return nil
}

// Server returns the configuration of a listener, nil without TLS. Files that change are read again within a second; while
// they do not fit together the last good ones stay in force.
func (t TLS) Server() (*tls.Config, error) {
	if !t.On() {
		return nil, nil
	}
	r := &reloader{paths: []string{t.Cert, t.Key, t.ClientCA}, now: time.Now, load: t.load}
	if err := r.first(); err != nil {
		return nil, fmt.Errorf("config: tls: %w", err)
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.current(), nil },
	}, nil
}

func (t TLS) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("cert and key: %w", err)
	}
	// Streams that fail are cut, which HTTP/1.1 clients can tell from an end.
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if t.ClientCA == "" {
		return c, nil
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	c.ClientCAs, err = authorities(t.ClientCA)
	return c, err
}

// Client returns the configuration for such connections; at is the key of the section, for errors.
func (c ClientTLS) Client(at string) (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if c.CA != "" {
		if out.RootCAs, err = authorities(c.CA); err != nil {
			return nil, fmt.Errorf("config: %s.ca: %w", at, err)
		}
	}
	if c.Cert == "" {
		return out, nil
	}
	own := TLS{Cert: c.Cert, Key: c.Key}
	r := &reloader{paths: []string{c.Cert, c.Key}, now: time.Now, load: own.load}
	if err := r.first(); err != nil {
		return nil, fmt.Errorf("config: %s: %w", at, err)
	}
	out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &r.current().Certificates[0], nil
	}
	return out, nil
}

func authorities(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err // names the file
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM", path)
	}
	return pool, nil
}

// reloader keeps a configuration as new as its files.
type reloader struct {
	paths []string
	load  func() (*tls.Config, error)
	now   func() time.Time

	mu      sync.Mutex
	conf    *tls.Config
	stamps  []time.Time
	checked time.Time
}

// first loads the files; only then is a failure an error.
func (r *reloader) first() (err error) {
	r.stamps, r.checked = r.look(), r.now()
	r.conf, err = r.load()
	return err
}

// look returns when the files changed last.
func (r *reloader) look() []time.Time {
	out := make([]time.Time, len(r.paths))
	for i, p := range r.paths {
		if st, err := os.Stat(p); err == nil {
			out[i] = st.ModTime()
		}
	}
	return out
}

func (r *reloader) current() *tls.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if now.Sub(r.checked) < time.Second {
		return r.conf
	}
	r.checked = now
	stamps := r.look()
	if slices.EqualFunc(stamps, r.stamps, time.Time.Equal) {
		return r.conf
	}
	if conf, err := r.load(); err == nil {
		r.conf, r.stamps = conf, stamps
	}
	return r.conf
}
