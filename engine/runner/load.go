package runner

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"tandem/engine/cpu"
	"tandem/engine/executor"
	"tandem/engine/model"
	"tandem/engine/tensor"
	"tandem/engine/tokenizer"
	"tandem/engine/tokenizer/chat"
	"tandem/engine/transfer"
	"tandem/engine/transfer/wire"
)

// LoadOptions says what to load and how.
type LoadOptions struct {
	Path       string // GGUF file or Hugging Face folder
	ServedName string // empty = DefaultName
	// DefaultName may be empty too: then the checkpoint's own name counts, then that of its file or folder.
	DefaultName string
	Core        executor.Config // Vocab, Blocks, Layout, Namespace, Incarnation and Endpoint are filled in here
	Threads     int             // 0 = one per physical core
	ISA         string          // empty = best
	KVDType     tensor.DType    // Invalid = BF16
	PoolTokens  int             // of the KV pool, 0 = by memory
	F32         bool            // decode the weights to float32: slower, for comparison
	Wire        *wire.Config    // nil = no KV transfer
	Incarnation string
	Logger      *slog.Logger
	Loaded      func(name string, bytes int) // each packed weight, for progress
}

// Loaded is a model with everything that serves it. Close it after its engine
// has stopped.
type Loaded struct {
	Engine    *Engine
	Backend   *cpu.Backend
	Tokenizer *tokenizer.Tokenizer
	Template  *chat.Template // nil: the model has none
	EOS       []int32
	Config    model.Config

	server *wire.Server
}

// Close stops transfers and frees the device.
func (l *Loaded) Close() {
	if l.server != nil {
		l.server.Close()
	}
	l.Backend.Close()
}

// Load opens a model, packs it for the CPU and puts an engine on it. The engine
// is not running yet.
func Load(o LoadOptions) (_ *Loaded, err error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var opts []model.Option
	if o.F32 {
		opts = append(opts, model.AsF32())
	}
	ck, err := model.Open(o.Path, opts...)
	if err != nil {
		return nil, err
	}
	defer ck.Close() // weights are copied when packed
	l := &Loaded{Config: ck.Config}
	if err := l.text(ck, o.Logger); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Path, err)
	}
	core, kv := o.sizes(ck.Config)
	if err := checkPool(kv, o.PoolTokens, totalMemory()); err != nil {
		return nil, err
	}
	if l.Backend, err = cpu.New(cpu.Config{Threads: o.Threads, KV: kv, MaxRows: core.MaxNumTokens, ISA: o.ISA, Loaded: o.Loaded}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if err := model.Build(l.Backend, ck, model.Parallel{}); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Path, err)
	}
	if err := l.Backend.Seal(ck.Config.Vocab); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Path, err)
	}
	return l, l.engine(o, ck, core, kv)
}

// text makes tokenizer, template and end tokens.
func (l *Loaded) text(ck *model.Checkpoint, log *slog.Logger) (err error) {
	d := ck.Tokenizer
	switch {
	case len(d.JSON) > 0:
		l.Tokenizer, err = tokenizer.FromJSON(d.JSON, d.ConfigJSON)
	case ck.Format == model.FormatSafetensors:
		return errors.New("the folder has no tokenizer.json; older folders get one from transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)")
	default:
		l.Tokenizer, err = tokenizer.FromGGUF(tokenizer.GGUF{
			Model: d.Model, Pre: d.Pre, Tokens: d.Tokens, Types: d.Types, Scores: d.Scores, Merges: d.Merges,
			BOS: d.BOS, EOS: d.EOS, EOT: tokenizer.NoToken, EOM: tokenizer.NoToken, UNK: d.UNK,
			AddBOS: d.AddBOS, AddEOS: d.AddEOS, AddSpacePrefix: d.AddSpacePrefix,
		})
	}
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	if n := l.Tokenizer.VocabSize(); n > ck.Config.Vocab {
		return fmt.Errorf("tokenizer has %d ids, the model only %d rows", n, ck.Config.Vocab)
	}
	l.EOS = ends(l.Tokenizer.EOS(), ck.Config.EOS)
	token := func(id int32) string {
		if id < 0 {
			return ""
		}
		return l.Tokenizer.Token(id)
	}
	eos := d.EOS
	if own := l.Tokenizer.EOS(); len(own) > 0 {
		eos = own[0] // what the tokenizer's files name, where config.json may list several
	}
	l.Template, err = chat.NewTemplate(d.ChatTemplate, chat.Options{BOS: token(l.Tokenizer.BOS()), EOS: token(eos), Pad: token(d.PAD), Unk: token(d.UNK)})
	if errors.Is(err, chat.ErrNoTemplate) {
		log.Warn("the model has no chat template: only /v1/completions will work")
		return nil
	}
	return err
}

// ends joins lists of end tokens, keeping the first list's order.
func ends(lists ...[]int32) (all []int32) {
	for _, l := range lists {
		for _, id := range l {
			if !slices.Contains(all, id) {
				all = append(all, id)
			}
		}
	}
	return all
}

// sizes fixes context length and pool.
func (o *LoadOptions) sizes(m model.Config) (executor.Config, tensor.KVShape) {
	core := o.Core
	core.Vocab = m.Vocab
	if core.MaxSeqLen == 0 || core.MaxSeqLen > m.Context {
		if core.MaxSeqLen > m.Context {
			o.Logger.Warn("max_seq_len is more than the model was made for", "max_seq_len", core.MaxSeqLen, "using", m.Context)
		}
		core.MaxSeqLen = m.Context
		if m.Window > 0 {
			o.Logger.Warn("the model attends to a sliding window: requests are bounded by it", "max_seq_len", m.Window)
		}
	}
	if b := core.EffectiveBatch(); b < core.MaxBatch {
		o.Logger.Warn("max_batch_size is lowered so that a step has room for a block of prefill",
			"max_batch_size", core.MaxBatch, "using", b, "max_num_tokens", core.MaxNumTokens)
		core.MaxBatch = b
	}
	kv := tensor.KVShape{
		Layers: m.Layers, KVHeads: m.KVHeads, HeadDim: m.HeadDim, BlockTokens: core.BlockTokens, DType: o.KVDType,
	}
	if kv.DType == tensor.Invalid {
		kv.DType = tensor.BF16
	}
	kv.Blocks = poolBlocks(core, kv, o.PoolTokens)
	core.Blocks = kv.Blocks
	// A chat that names no max_tokens asks for the whole context, so one that cannot fit would never be served.
	if room := kv.Blocks * core.BlockTokens; room < core.MaxSeqLen {
		o.Logger.Warn("max_seq_len is lowered to the size of the KV pool: raise kv_cache_config.max_tokens for longer requests",
			"max_seq_len", core.MaxSeqLen, "using", room)
		core.MaxSeqLen = room
	}
	return core, kv
}

// ownName is the name that the checkpoint gives itself; without one, or where
// that is a path on the machine of its maker, the name of its file or folder.
func ownName(ck *model.Checkpoint) string {
	if name := ck.Config.Name; name != "" && !filepath.IsAbs(name) && !strings.HasPrefix(name, ".") {
		return name
	}
	return strings.TrimSuffix(filepath.Base(ck.Path), ".gguf")
}

// engine puts the driver, and the transfer endpoint if asked for, on the device.
func (l *Loaded) engine(o LoadOptions, ck *model.Checkpoint, core executor.Config, kv tensor.KVShape) (err error) {
	name := cmp.Or(o.ServedName, o.DefaultName, ownName(ck))
	core.Incarnation = o.Incarnation
	core.Layout = transfer.Layout{
		Layers: kv.Layers, KVHeads: kv.KVHeads, HeadDim: kv.HeadDim, DType: kv.DType.String(), BlockTokens: kv.BlockTokens, Packing: cpu.Packing,
	}
	fingerprint := ck.Fingerprint()
	if core.Namespace == "" {
		core.Namespace = name + "@" + fingerprint[:16]
	}
	if o.Wire != nil {
		o.Wire.Incarnation = o.Incarnation
		if l.server, err = wire.Listen(*o.Wire); err != nil {
			return fmt.Errorf("KV transfer: %w", err)
		}
		core.Endpoint = l.server.Endpoint()
	}
	info := Info{
		Role: core.Role, Model: name, Fingerprint: fingerprint, Incarnation: o.Incarnation, Namespace: core.Namespace,
		TransferEndpoint: core.Endpoint, Layout: core.Layout, Vocab: core.Vocab, MaxBatch: core.MaxBatch,
		MaxNumTokens: core.MaxNumTokens, MaxSeqLen: core.MaxSeqLen, Backend: l.Backend.Info(),
	}
	if l.Engine, err = New(Config{Core: core, Info: info, Logger: o.Logger}, l.Backend, nil); err != nil {
		return err
	}
	if l.server != nil {
		l.Engine.transport = l.server.Rank(0, l.Backend, l.Engine.TransferEvent)
	}
	return nil
}
