package comm

import (
	"fmt"
	"testing"
)

func benchLayouts(b *testing.B, ls []layout, f func(b *testing.B, c Comm, n int) error) {
	for _, l := range ls {
		b.Run(l.String(), func(b *testing.B) {
			w := newWorld(b, l, Config{})
			b.ReportAllocs()
			b.ResetTimer()
			w.all(b, func(c Comm) error { return f(b, c, b.N) })
		})
	}
}

func BenchmarkExchange(b *testing.B) {
	benchLayouts(b, []layout{{1}, {2}, {4}, {8}, {1, 1}, {2, 2}, {1, 1, 1, 1}}, func(b *testing.B, c Comm, n int) error {
		for iter := range uint64(n) {
			if _, err := c.Exchange(b.Context(), record(c, iter)); err != nil {
				return err
			}
		}
		return nil
	})
}

func BenchmarkAllReduce(b *testing.B) {
	for _, shape := range [][2]int{{64, 576}, {512, 2048}} {
		b.Run(fmt.Sprintf("%dx%d", shape[0], shape[1]), func(b *testing.B) {
			b.SetBytes(int64(4 * shape[0] * shape[1]))
			benchLayouts(b, []layout{{2}, {4}, {8}, {1, 1}, {2, 2}}, func(b *testing.B, c Comm, n int) error {
				x := make([]float32, shape[0]*shape[1])
				for range n {
					if err := c.AllReduce(b.Context(), x); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}
