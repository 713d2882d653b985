package des

import (
	"fmt"
	"strings"
)

// View draws the present state for a terminal: the clients, and for each
// instance its ranks' queues, what runs and how full their pools are.
func (s *Sim) View() string {
	var b strings.Builder
	phase := "measuring"
	if !s.measuring {
		phase = "warming up"
	}
	fmt.Fprintf(&b, "%8.1f s  %s  %d requests sent, %d without an end, %d measured, %d hand-overs under way\n",
		s.now.Seconds(), phase, s.clients.sent, s.clients.live, len(s.res.Records), len(s.pullers))
	for _, role := range [][]*instance{s.ctx, s.gen} {
		for i, in := range role {
			if i == viewed {
				fmt.Fprintf(&b, "  and %d more\n", len(role)-i)
				break
			}
			in.view(&b)
		}
	}
	return b.String()
}

// viewed is how many instances of a role are drawn, and ranks of an instance.
const viewed = 16

// bars are eighths of a full pool.
var bars = []rune(" ▁▂▃▄▅▆▇█")

func (in *instance) view(b *strings.Builder) {
	name, _, _ := strings.Cut(in.ID, ":")
	fmt.Fprintf(b, "  %-7s", name)
	if in.dead {
		b.WriteString(" gone\n")
		return
	}
	for i, r := range in.ranks {
		if i == viewed {
			fmt.Fprintf(b, "  and %d more", len(in.ranks)-i)
			break
		}
		st := r.core.Stats()
		used := st.BlocksTotal - st.BlocksFree
		fmt.Fprintf(b, " %3d+%-3d%c", st.Waiting, st.Running, bars[used*(len(bars)-1)/max(st.BlocksTotal, 1)])
	}
	b.WriteString("\n")
}
