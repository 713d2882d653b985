package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// adminServer serves pprof and the debug pages on a listener of its own.
type adminServer struct {
	addr string // http://host:port, or off
	srv  io.Closer
}

func (a adminServer) close() {
	if a.srv != nil {
		a.srv.Close()
	}
}

func (p *process) startAdmin() (adminServer, error) {
	if p.cfg.AdminAddr == "off" {
		return adminServer{addr: "off"}, nil
	}
	ln, err := net.Listen("tcp", p.cfg.AdminAddr)
	if err != nil {
		return adminServer{}, fmt.Errorf("admin_addr %s: %w (choose another, or off)", p.cfg.AdminAddr, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("POST /cluster/role", p.changeRole)
	for _, page := range []string{"requests", "blocks", "flight"} {
		mux.HandleFunc("GET /debug/"+page, p.debugPage)
	}
	mux.HandleFunc("POST /reset_prefix_cache", p.debugPage)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(ln) }()
	return adminServer{addr: "http://" + ln.Addr().String(), srv: srv}, nil
}

// debugPage answers beside the engine's goroutine, so also while that hangs.
func (p *process) debugPage(w http.ResponseWriter, r *http.Request) {
	if h := p.debug.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	http.Error(w, "the worker is starting", http.StatusServiceUnavailable)
}
