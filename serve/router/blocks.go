package router

import (
	"cmp"

	"tandem/engine/blockhash"
	"tandem/serve/discovery"
)

// HashAlgo names the block hashes that events of workers must use to be understood.
const HashAlgo = "tandem-kv1"

// codePointsPerBlockToken is how many code points stand for a token where a prompt's ids are not known.
const codePointsPerBlockToken = 4

// hashing is one way to name the blocks of a prompt.
type hashing struct {
	namespace string // of the worker
	block     int    // tokens
}

// prompt is a request's prompt as blocks.
type prompt struct {
	ids    []uint64 // wire ids of the full blocks
	total  int      // blocks, a partial last one included
	block  int      // tokens, or code points, in a block
	guess  bool     // of text: no worker knows these ids
	tokens int      // length in those units
}

// padded is the length of the prompt in whole blocks, the denominator of a match.
func (p *prompt) padded() int { return max(p.total*p.block, 1) }

// prompts hashes the prompt of one request, once for each way that its candidates need.
type prompts struct {
	req   *Request
	block int // where a worker does not tell
	made  []hashing
	done  []prompt
}

// of returns the prompt as the blocks of a worker.
func (p *prompts) of(in *discovery.Instance) *prompt {
	h := hashing{namespace: in.Info.Namespace, block: cmp.Or(in.Info.TokensPerBlock, p.block)}
	for i := range p.made {
		if p.made[i] == h {
			return &p.done[i]
		}
	}
	p.made = append(p.made, h)
	p.done = append(p.done, hashPrompt(p.req, h))
	return &p.done[len(p.done)-1]
}

// prepare hashes for all candidates; of then only looks up, unless the candidates changed meanwhile.
func (p *prompts) prepare() {
	for _, in := range p.req.Candidates() {
		p.of(&in)
	}
}

// hashPrompt chains the blocks of a prompt. Its last token is not computed before it is needed, so it belongs to no block.
func hashPrompt(req *Request, h hashing) prompt {
	units, parent := req.Tokens, blockhash.Root(h.namespace, "", req.Salt)
	out := prompt{block: h.block}
	if units == nil {
		units, parent = []rune(req.Text), blockhash.Root("text", h.namespace, req.Salt)
		out.guess, out.block = true, h.block*codePointsPerBlockToken
	}
	out.tokens = len(units)
	if len(units) == 0 {
		return out
	}
	units = units[:len(units)-1]
	out.total = (len(units) + out.block - 1) / out.block
	out.ids = make([]uint64, 0, len(units)/out.block)
	for len(units) >= out.block {
		parent = blockhash.Next(parent, units[:out.block])
		out.ids = append(out.ids, parent.Wire())
		units = units[out.block:]
	}
	return out
}
