package discovery

import (
	"strings"
	"testing"
)

func TestParseClusterURI(t *testing.T) {
	for _, tc := range []struct{ text, scheme, endpoints string }{
		{"http://h:80", "http", "h:80"},
		{"http://[::1]:80/", "http", "[::1]:80"},
		{"etcd://h:2379", "etcd", "h:2379"},
		{"etcd://a:1,b:2", "etcd", "a:1 b:2"},
		{"http://a:1,b:2", "", ""},
		{"https://h:80", "", ""},
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
		scheme, endpoints, err := ParseClusterURI(tc.text)
		if scheme != tc.scheme || strings.Join(endpoints, " ") != tc.endpoints || (err == nil) != (tc.scheme != "") {
			t.Errorf("%q: %s %v %v", tc.text, scheme, endpoints, err)
		}
	}
}
