package discovery

import "fmt"

// Pairs tells whether blocks made by ctx can be used by gen. When they cannot, why says it in words.
func Pairs(ctx, gen *ServerInfo) (ok bool, why string) {
	a, b := ctx.Layout, gen.Layout
	switch {
	case ctx.Fingerprint != gen.Fingerprint:
		return false, fmt.Sprintf("model_fingerprint %q differs from %q", short(ctx.Fingerprint), short(gen.Fingerprint))
	case a.Layers != b.Layers || a.KVHeads != b.KVHeads || a.HeadDim != b.HeadDim:
		return false, fmt.Sprintf("kv_layout %d layers, %d heads of %d differs from %d, %d, %d",
			a.Layers, a.KVHeads, a.HeadDim, b.Layers, b.KVHeads, b.HeadDim)
	case a.DType != b.DType:
		return false, fmt.Sprintf("kv_layout dtype %q differs from %q", a.DType, b.DType)
	case (a.TP != b.TP || a.PP != b.PP) && !(a.Reshard && b.Reshard):
		return false, fmt.Sprintf("kv_layout tp %d pp %d differs from tp %d pp %d and not both reshard", a.TP, a.PP, b.TP, b.PP)
	}
	return true, ""
}

func short(fingerprint string) string {
	if len(fingerprint) > 16 {
		return fingerprint[:16]
	}
	return fingerprint
}
