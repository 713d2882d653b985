package config

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// MetadataServer is metadata_server: where workers of other implementations write their addresses. The frontend polls it.
type MetadataServer struct {
	Type    string  `mapstructure:"server_type"` // etcd; empty = none
	Host    string  `mapstructure:"hostname"`
	Port    int     `mapstructure:"port"`
	Timeout float64 `mapstructure:"health_check_timeout"` // seconds
	Refresh float64 `mapstructure:"refresh_interval"`     // seconds
}

func defaultMetadataServer() MetadataServer {
	return MetadataServer{Host: "localhost", Port: 2379, Timeout: 5, Refresh: 10}
}

// On tells whether there is one.
func (m MetadataServer) On() bool { return m.Type != "" }

// HealthTimeout bounds the question whether a worker is there.
func (m MetadataServer) HealthTimeout() time.Duration { return seconds(m.Timeout) }

// RefreshInterval is the time between two polls.
func (m MetadataServer) RefreshInterval() time.Duration { return seconds(m.Refresh) }

func (m MetadataServer) validate() error {
	const at, day = "metadata_server.", 86_400
	switch {
	case m == defaultMetadataServer():
		return nil
	case m.Type == "":
		return errors.New(at + "server_type: is required; use etcd")
	case m.Type != "etcd":
		return fmt.Errorf(at+"server_type: %q is not supported; use etcd", m.Type)
	case m.Host == "" || strings.ContainsAny(m.Host, "/ []@,"):
		return fmt.Errorf(at+"hostname: %q is no host", m.Host)
	case m.Port < 1 || m.Port > 65535:
		return fmt.Errorf(at+"port: %d is outside 1..65535", m.Port)
	case m.Timeout <= 0 || m.Timeout > day:
		return fmt.Errorf(at+"health_check_timeout: %g must be above 0 and at most a day", m.Timeout)
	case m.Refresh <= 0 || m.Refresh > day:
		return fmt.Errorf(at+"refresh_interval: %g must be above 0 and at most a day", m.Refresh)
	}
	return nil
}

// readMetadata takes metadata_server from the file of its own that metadata_server_config_file names.
func (f *Frontend) readMetadata() error {
	if f.MetadataFile == "" {
		return nil
	}
	if f.Metadata != defaultMetadataServer() {
		return errors.New("config: metadata_server_config_file: is given beside metadata_server; use one")
	}
	m, _, err := Load(defaultMetadataServer(), Source{File: f.MetadataFile, LookupEnv: func(string) (string, bool) { return "", false }})
	if err != nil {
		return err
	}
	f.Metadata = m
	if !m.On() {
		return fmt.Errorf("config %s: server_type: is required; use etcd", f.MetadataFile)
	}
	if err := f.Validate(); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	return nil
}

// joining tells whether workers come by themselves instead of being listed, and by which key.
func (f Frontend) joining() string {
	switch {
	case f.Cluster.On():
		return "disagg_cluster"
	case f.Metadata.On():
		return "metadata_server"
	}
	return ""
}

// Joining tells whether workers come by themselves instead of being listed.
func (f Frontend) Joining() bool { return f.joining() != "" }
