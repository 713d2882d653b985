//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// selfSigned writes a certificate that is its own authority, and its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// TestTLS encrypts the public face and the way to the workers, both of which want a certificate, and asks for an API key.
func TestTLS(t *testing.T) {
	cert, key := selfSigned(t)
	files := fmt.Sprintf("cert: %s, key: %s", cert, key)
	for name, val := range map[string]string{"CERT": cert, "KEY": key, "CLIENT_CA": cert} {
		t.Setenv("TANDEM_TLS__"+name, val) // of workers and frontend alike
	}
	ctxWorker, gen := startWorker(t, "ctx", workerConfig{}), startWorker(t, "gen", workerConfig{})
	front := startFrontend(t, []*process{ctxWorker}, []*process{gen},
		fmt.Sprintf("tls: {workers: {ca: %s, %s}}\napi_keys: [{name: tests, key: key-of-the-tests-0123}]\n", cert, files))
	for _, p := range []*process{ctxWorker, gen, front} {
		if !strings.HasPrefix(p.url, "https://127.0.0.1:") {
			t.Errorf("%s: %s", p.name, p.url)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	send := func(url, apiKey string, certs ...tls.Certificate) (int, string, error) {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: certs}}}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(`{"prompt":"The sky is","max_tokens":8,"temperature":0}`))
		if err != nil {
			return 0, "", err
		}
		req.Header.Set("Authorization", "Bearer "+apiKey)
		resp, err := c.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}
	if status, body, err := send(front.url, "key-of-the-tests-0123", pair); err != nil || status != 200 || !strings.Contains(body, `"completion_tokens":8`) {
		t.Errorf("%d %s %v", status, body, err)
	}
	if status, body, err := send(front.url, "another-key-0123456789", pair); err != nil || status != 401 {
		t.Errorf("without a valid key: %d %s %v", status, body, err)
	}
	for _, p := range []*process{front, gen} {
		if status, body, err := send(p.url, "key-of-the-tests-0123"); err == nil {
			t.Errorf("%s, without a certificate: %d %s", p.name, status, body)
		}
	}
}
