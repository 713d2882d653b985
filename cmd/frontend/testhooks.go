//go:build testhooks

package main

import (
	"os"
	"strconv"

	"tandem/serve/router"
)

// rankHook names the ADP rank that routers of this build choose, for tests of how
// such choices are passed on. No router of the product chooses one.
const rankHook = "TANDEM_TEST_RANK"

func init() {
	hooked = func(r router.Router) router.Router {
		rank, err := strconv.Atoi(os.Getenv(rankHook))
		if err != nil {
			return r
		}
		return ranked{r, rank}
	}
}

type ranked struct {
	router.Router
	rank int
}

func (r ranked) Select(q router.Request) (router.Selection, error) {
	s, err := r.Router.Select(q)
	s.Rank = &r.rank
	return s, err
}
