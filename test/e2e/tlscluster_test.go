//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"tandem/test/ports"
)

// TestRegistrationIsEncrypted: workers that speak TLS register over TLS with the storage in a frontend, which asks for their
// certificate, and serve through it. One without a certificate does not get in.
func TestRegistrationIsEncrypted(t *testing.T) {
	t.Parallel() // mostly waits
	needModel(t)
	cert, key := selfSigned(t)
	port := ports.Free(t)
	common := fmt.Sprintf(`
internal_request_auth_key: %s
tls: {cert: %[2]s, key: %[3]s, client_ca: %[2]s%%s}
disagg_cluster:
  cluster_uri: https://127.0.0.1:%[4]d
  heartbeat_interval_sec: 1
  inactive_timeout_sec: 2
  tls: {ca: %[2]s, cert: %[2]s, key: %[3]s}
`, clusterKey, cert, key, port)
	front, ready := launch(t, "frontend", frontendBin, "serve", "-c", writeFile(t, "cluster.yaml",
		"hostname: 127.0.0.1\nport: "+strconv.Itoa(port)+fmt.Sprintf(common, fmt.Sprintf(", workers: {ca: %s, cert: %s, key: %s}", cert, cert, key))))
	worker := fmt.Sprintf(common, "") + "max_num_tokens: 512\nkv_cache_config: {max_tokens: 8192}\nthreads: 1\n"
	for _, role := range []string{"ctx", "gen"} {
		start(t, role, engineBin, "serve", modelName, "--role", role, "--port", "0", "-c", writeFile(t, "worker.yaml", worker))
	}
	select {
	case line := <-ready:
		front.readReady(line)
	case <-time.After(startLimit):
		t.Fatalf("not ready:\n%s", front.log.String())
	}
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
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}}}
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	call := func(method, path, body string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, front.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+clusterKey)
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %v %s", path, resp.StatusCode, err, data)
		}
		return string(data)
	}
	if got := call(http.MethodPost, textPath, `{"prompt":"The sky is","max_tokens":8,"temperature":0}`); !strings.Contains(got, `"completion_tokens":8`) {
		t.Errorf("answer %s", got)
	}
	var list struct {
		Result map[string]string `json:"result"`
	}
	if err := json.Unmarshal([]byte(call(http.MethodGet, "/get_prefix?key_prefix=/disagg//workers/", "")), &list); err != nil || len(list.Result) != 2 {
		t.Errorf("registered: %v %v", list.Result, err)
	}
	for _, value := range list.Result {
		if !strings.Contains(value, `"scheme":"https"`) {
			t.Errorf("a worker registers as %s", value)
		}
	}
	stranger := strings.Replace(worker, "tls: {ca: "+cert+", cert: "+cert+", key: "+key+"}", "tls: {ca: "+cert+"}", 1)
	p := start(t, "stranger", engineBin, "serve", modelName, "--role", "gen", "--port", "0", "-c", writeFile(t, "worker.yaml", stranger))
	within(t, "a worker without a certificate is refused", func() bool { return strings.Contains(p.log.String(), "not registered") })
}
