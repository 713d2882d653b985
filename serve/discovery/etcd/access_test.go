package etcd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"tandem/test/etcd"
)

// certificate writes a certificate that is its own authority, and returns a configuration that shows and trusts it.
func certificate(t *testing.T) (cert, key string, conf *tls.Config) {
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
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return cert, key, &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: k}}, MinVersion: tls.VersionTLS12}
}

// TestAccess: an etcd that wants TLS, a certificate and a user lets in who has all of them.
func TestAccess(t *testing.T) {
	cert, key, conf := certificate(t)
	s := etcd.StartTLS(t, cert, key, cert)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	try := func(a Access, limit time.Duration) error {
		store, err := New([]string{s.Addr}, a)
		if err != nil {
			return err
		}
		defer store.Close()
		once, end := context.WithTimeout(ctx, limit)
		defer end()
		if err := store.Put(once, "/disagg/t/workers/w", "x", time.Minute); err != nil {
			return err
		}
		list, err := store.List(once, "/disagg/t/")
		if err == nil && len(list) != 1 {
			t.Errorf("list %v", list)
		}
		return err
	}
	bare := conf.Clone()
	bare.Certificates = nil
	if err := try(Access{TLS: conf}, limit); err != nil {
		t.Fatalf("with a certificate: %v", err)
	}
	if err := try(Access{TLS: bare}, time.Second); err == nil {
		t.Error("without a certificate")
	}
	if err := try(Access{}, time.Second); err == nil {
		t.Error("without TLS")
	}
	admin, err := New([]string{s.Addr}, Access{TLS: conf})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	c := admin.client
	for _, step := range []func() error{
		func() error { _, err := c.RoleAdd(ctx, "root"); return err },
		func() error { _, err := c.UserAdd(ctx, "root", "admin"); return err },
		func() error { _, err := c.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := c.RoleAdd(ctx, "disagg"); return err },
		func() error {
			_, err := c.RoleGrantPermission(ctx, "disagg", "/disagg/", clientv3.GetPrefixRangeEnd("/disagg/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := c.UserAdd(ctx, "tandem", "secret"); return err },
		func() error { _, err := c.UserGrantRole(ctx, "tandem", "disagg"); return err },
		func() error { _, err := c.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if err := try(Access{TLS: conf, Username: "tandem", Password: "secret"}, limit); err != nil {
		t.Errorf("with name and password: %v", err)
	}
	if err := try(Access{TLS: conf, Username: "tandem", Password: "another"}, time.Second); err == nil {
		t.Error("with another password")
	}
	homes, err := New([]string{s.Addr}, Access{TLS: conf, Username: "tandem", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer homes.Close()
	if at, err := NewHomes(homes, "/disagg/t/homes/").Keep(ctx, "k", "w", ""); at != "w" || err != nil {
		t.Errorf("homes: %q %v", at, err)
	}
}
