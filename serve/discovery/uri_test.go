package discovery

import (
	"strings"
	"testing"
)

func TestParseStore(t *testing.T) {
	for _, tc := range []struct{ text, scheme, endpoints string }{
		{"http://h:80", "http", "h:80"},
		{"http://[::1]:80/", "http", "[::1]:80"},
		{"etcd://h:2379", "etcd", "h:2379"},
		{"etcd://a:1,b:2", "etcd", "a:1 b:2"},
		{"http://a:1,b:2", "", ""},
		{"https://h:80", "https", "h:80"},
		{"etcds://a:1,b:2", "etcds", "a:1 b:2"},
		{"https://a:1,b:2", "", ""},
		{"zk://h:80", "", ""},
		{"h:80", "", ""},
		{"http://h", "", ""},
		{"http://h:0", "", ""},
		{"http://h:99999", "", ""},
		{"http://:80", "", ""},
		{"http://u:p@h:80", "", ""},
		{"http://h:80/path", "", ""},
		{"etcd://a:1,", "", ""},
		{"", "", ""},
	} {
		s, err := ParseStore(tc.text)
		if strings.Join(s.Endpoints, " ") != tc.endpoints || (err == nil) != (tc.scheme != "") ||
			s.Etcd != strings.HasPrefix(tc.scheme, "etcd") || s.TLS != strings.HasSuffix(tc.scheme, "s") {
			t.Errorf("%q: %+v %v", tc.text, s, err)
		}
		if err == nil && !s.Etcd && s.Base() != tc.scheme+"://"+tc.endpoints {
			t.Errorf("%q: base %s", tc.text, s.Base())
		}
	}
}
