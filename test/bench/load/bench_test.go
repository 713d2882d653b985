package load

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"tandem/test/bench/result"
	"tandem/test/bench/schedule"
	"tandem/test/bench/stub"
	"tandem/test/bench/workload"
)

// asStub makes this test binary the server of the benchmark, in a process of its own.
const asStub = "TANDEM_BENCH_STUB"

func TestMain(m *testing.M) {
	if itl, err := time.ParseDuration(os.Getenv(asStub)); err == nil {
		serveStub(itl)
	}
	os.Exit(m.Run())
}

// serveStub prints its address and serves until its input ends.
func serveStub(itl time.Duration) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		_ = http.Serve(ln, &stub.Server{TTFT: itl, ITL: itl})
	}()
	fmt.Println(ln.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func startStub(b *testing.B, itl time.Duration) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asStub+"="+itl.String(), "GOMAXPROCS=", "GOGC=400")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return "http://" + strings.TrimSpace(line)
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// BenchmarkStreams keeps 2,000 streams of ten chunks a second going on one processor, against a server in another
// process. What it uses of the processor, and how far gaps are from those of the server, tell whether numbers of that
// load can be trusted.
func BenchmarkStreams(b *testing.B) {
	const streams, itl, each = 2000, 100 * time.Millisecond, 6 * time.Second
	url := startStub(b, itl)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for b.Loop() {
		w := workload.Random(workload.RandomOptions{Requests: streams, Input: workload.Fixed(128), Output: workload.Uniform(30, 60), Seed: 1})
		c := &Client{URL: url, API: Chat, Model: stub.Model}
		o := Options{
			Client: c, Prompts: &Prompts{API: Chat, Model: stub.Model, Vocabulary: PlainVocabulary()}, Workload: w,
			Schedule: schedule.Options{Mode: schedule.Concurrency, Concurrency: streams, RampUp: time.Second, Duration: each, Recycle: true},
			Grace:    time.Minute,
		}
		before, begin := cpuSeconds(), time.Now()
		records, err := Run(b.Context(), o)
		if err != nil {
			b.Fatal(err)
		}
		used, took := cpuSeconds()-before, time.Since(begin).Seconds()
		c.http.CloseIdle()
		s := result.Summarize(records, result.SummaryOptions{})
		if s.Completed != s.Offered {
			b.Fatalf("%d of %d completed: %v", s.Completed, s.Offered, records[0].Error)
		}
		b.ReportMetric(steady(records, 2, each.Seconds()), "chunks/s")
		b.ReportMetric(float64(s.ConcurrencyMax), "streams")
		b.ReportMetric(100*used/took, "%cpu")
		b.ReportMetric(1000*s.Dist["itl"].P50, "itl-p50-ms")
		b.ReportMetric(1000*s.Dist["itl"].P99, "itl-p99-ms")
		b.ReportMetric(1000*s.Dist["schedule_lag"].P99, "lag-p99-ms")
	}
}

// steady counts the chunks a second that came between two times.
func steady(records []*result.Record, from, to float64) float64 {
	n := 0
	for _, r := range records {
		at := r.First
		for i := -1; i < len(r.Gaps); i++ {
			if i >= 0 {
				at += r.Gaps[i]
			}
			if s := float64(at) / 1e9; s >= from && s < to {
				n++
			}
		}
	}
	return float64(n) / (to - from)
}
