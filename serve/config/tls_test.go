package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority signs certificates for tests.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.key = newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = filepath.Join(a.dir, "ca.pem")
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// issue writes a certificate and its key and returns their files.
func (a *authority) issue(t *testing.T, name string) (cert, key string) {
	t.Helper()
	k := newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	writePEM(t, cert, "CERTIFICATE", der)
	writePEM(t, key, "EC PRIVATE KEY", raw)
	return cert, key
}

func serveTLS(t *testing.T, conf *tls.Config) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	}))
	srv.Config.ErrorLog = nil
	srv.Listener = tls.NewListener(srv.Listener, conf)
	srv.Start()
	t.Cleanup(srv.Close)
	return "https://" + srv.Listener.Addr().String()
}

func fetch(t *testing.T, url string, w ClientTLS) (string, *tls.ConnectionState, error) {
	t.Helper()
	conf, err := w.Client("tls.workers")
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), resp.TLS, err
}

func TestMutualTLS(t *testing.T) {
	ours, foreign := newAuthority(t, "ours"), newAuthority(t, "foreign")
	cert, key := ours.issue(t, "server")
	good, goodKey := ours.issue(t, "client")
	bad, badKey := foreign.issue(t, "stranger")
	for _, tc := range []struct {
		name   string
		server TLS
		client ClientTLS
		ok     bool
	}{
		{"TLS", TLS{Cert: cert, Key: key}, ClientTLS{CA: ours.file}, true},
		{"another authority", TLS{Cert: cert, Key: key}, ClientTLS{CA: foreign.file}, false},
		{"the system's authorities", TLS{Cert: cert, Key: key}, ClientTLS{}, false},
		{"both", TLS{Cert: cert, Key: key, ClientCA: ours.file}, ClientTLS{CA: ours.file, Cert: good, Key: goodKey}, true},
		{"no client certificate", TLS{Cert: cert, Key: key, ClientCA: ours.file}, ClientTLS{CA: ours.file}, false},
		{"a stranger's", TLS{Cert: cert, Key: key, ClientCA: ours.file}, ClientTLS{CA: ours.file, Cert: bad, Key: badKey}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conf, err := tc.server.Server()
			if err != nil {
				t.Fatal(err)
			}
			text, _, err := fetch(t, serveTLS(t, conf), tc.client)
			if (err == nil) != tc.ok || tc.ok && text != "HTTP/1.1" {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
}

func TestCertificatesAreReadAgain(t *testing.T) {
	ours := newAuthority(t, "ours")
	cert, key := ours.issue(t, "server")
	files := TLS{Cert: cert, Key: key}
	now := time.Now()
	r := &reloader{paths: []string{cert, key}, now: func() time.Time { return now }, load: files.load}
	if err := r.first(); err != nil {
		t.Fatal(err)
	}
	was := r.current()
	later := func(path string, at time.Duration) {
		if err := os.Chtimes(path, now.Add(at), now.Add(at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(key, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	later(key, time.Minute)
	now = now.Add(2 * time.Second)
	if r.current() != was {
		t.Error("files that do not fit are taken")
	}
	ours.issue(t, "server")
	later(cert, 2*time.Minute)
	later(key, 2*time.Minute)
	if r.current() != was {
		t.Error("files are looked at more than once a second")
	}
	now = now.Add(2 * time.Second)
	if got := r.current(); got == was || string(got.Certificates[0].Certificate[0]) == string(was.Certificates[0].Certificate[0]) {
		t.Error("the new certificate is not taken")
	}
}

func TestBadTLSKeys(t *testing.T) {
	for text, want := range map[string]string{
		`tls: {cert: a.pem}`:                          "tls.key: is missing",
		`tls: {key: a.key}`:                           "tls.cert: is missing",
		`tls: {client_ca: a.pem}`:                     "tls.cert: is missing",
		`tls: {workers: {cert: a.pem}}`:               "tls.workers",
		`tls: {crt: a.pem}`:                           `nearest known key is "cert"`,
		`tls: {cert: /no/such/file, key: /no/either}`: "cert and key",
		`tls: {workers: {ca: /no/such/file}}`:         "tls.workers.ca",
		`{tls: {cert: a, key: b}, disagg_cluster: {cluster_uri: "http://h:1"}}`: "write https://h:1",
	} {
		f, _, err := LoadFrontend(Source{Data: []byte(text)})
		if err == nil {
			_, err = f.TLS.Server()
		}
		if err == nil {
			_, err = f.TLS.Workers.Client("tls.workers")
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
