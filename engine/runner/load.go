package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/comm"
	"tandem/engine/cpu"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/model"
	"tandem/engine/request"
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
	Backend     string          // "cpu", "cuda", or "auto" (also empty): the best there is
	Threads     int             // of the CPU, 0 = one per physical core
	Nice        int             // of the compute threads, see cpu.Config
	PinThreads  bool            // each to a processor of its own
	PinSkip     int             // how many processors are for other workers
	Memory      float64         // part of a GPU's free memory for the KV pool, 0 = DefaultMemory
	Graphs      []int           // decode batches that a GPU runs as one launch, see GraphSizes; none without
	ISA         string          // empty = best
	KVDType     tensor.DType    // Invalid = BF16
	PoolTokens  int             // of the KV pool, 0 = by memory
	F32         bool            // decode the weights to float32 and multiply them so: slower, for comparison
	Activations string          // of the CPU beside quantised weights: "int16", "int8", or "auto" (also empty), see cpu.BestActivations
	TokensOnly  bool            // do without tokenizer: requests are token ids and give no text
	Overlap     *bool           // see Config; of one rank. nil = as is best for the device
	Wire        *wire.Config    // nil = no KV transfer
	Tiers       TierOptions     // below the KV pool
	PackedDir   string          // where the CPU keeps packed weights between starts, empty = nowhere
	Incarnation string
	Logger      *slog.Logger
	Loaded      func(name string, bytes int) // each packed weight, for progress

	Ranks       int                // of the instance, 0 = 1; tensor-parallel unless AttentionDP
	AttentionDP bool               // each rank has requests of its own
	ADP         adprouter.Settings // with AttentionDP
	SplitMLP    bool               // with AttentionDP: dense MLPs are split over the ranks
	HangTimeout time.Duration      // a step or rank without headway for so long ends the instance, 0 = never
	Stall       time.Duration      // see Config

	acts  cpu.Activations // what Activations comes to
	Idle  time.Duration   // see Config
	Group *GroupOptions   // nil = all ranks are in this process

	Deterministic bool // a row's bits are independent of its batch on a GPU too
}

// GroupOptions spreads the ranks of an instance over several processes.
type GroupOptions struct {
	Addr        string // host:port where rank 0 listens and the others join
	First, Last int    // ranks of this process
	Key         []byte // of the instance, may be empty
	Host        string // where other processes reach the ranks' blocks, empty = loopback
}

// Loaded is a model with everything that serves it. Close it after its engine
// has stopped.
type Loaded struct {
	Engine    *Engine
	Backends  []Backend // of the ranks of this process
	Tokenizer *tokenizer.Tokenizer
	Template  *chat.Template // nil: the model has none
	EOS       []int32
	Config    model.Config

	devices devices
	links   []*lateGroup // of Backends
	server  *wire.Server
}

// Close stops transfers and frees the devices.
// After a rank that is stuck nothing is freed, since it may go on at any time.
func (l *Loaded) Close() {
	if l.Engine != nil && l.Engine.stuck.Load() {
		return
	}
	if l.server != nil {
		l.server.Close()
	}
	for _, b := range l.Backends {
		b.Close()
	}
	l.devices.close()
}

// Memory reports where the memory of all ranks of this process goes.
func (l *Loaded) Memory() tensor.MemoryReport {
	var all tensor.MemoryReport
	for i, b := range l.Backends {
		r := b.MemoryReport()
		if i == 0 {
			all = r
			continue
		}
		all.Threads += r.Threads
		all.KVBytes += r.KVBytes
		all.ActivationBytes += r.ActivationBytes
	}
	all.WeightBytes = l.devices.weights()
	return all
}

// KVTokens is how many tokens the pools of this process's ranks hold: together,
// or with tensor parallelism each of them.
func (l *Loaded) KVTokens() int {
	i := l.Engine.cfg.Core
	if l.Engine.cfg.Info.TensorRanks > 1 {
		return i.Blocks * i.BlockTokens
	}
	return len(l.Backends) * i.Blocks * i.BlockTokens
}

// Load opens a model, packs it for the device and puts an engine on it. With ranks
// in other processes it returns when these have come. The engine is not running
// yet.
func Load(ctx context.Context, o LoadOptions) (_ *Loaded, err error) {
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
	if !o.TokensOnly {
		if err := l.text(ck, o.Logger); err != nil {
			return nil, fmt.Errorf("%s: %w", o.Path, err)
		}
	}
	ranks, err := o.span()
	if err != nil {
		return nil, err
	}
	if err := o.parallel(ranks.First).Check(&ck.Config); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Path, err)
	}
	if l.devices, err = openDevices(&o, ck); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	_, onCPU := l.devices.(*cpuDevices)
	if o.acts, err = o.activations(onCPU); err != nil {
		return nil, err
	}
	if o.F32 && !onCPU {
		return nil, errors.New("dtype: float32 is of the CPU: use it with --backend cpu")
	}
	l.Config = ck.Config // without windows, where the device has none
	share, most := l.devices.pool(ranks.Len(), int64(ck.Bytes()))
	core, kv := o.sizes(ck.Config, ranks, share)
	if err := checkPool(kv, o.PoolTokens, ranks.Len(), most); err != nil {
		return nil, err
	}
	for rank := ranks.First; rank <= ranks.Last; rank++ {
		if err := l.rank(&o, ck, rank, ranks, core, kv); err != nil {
			return nil, err
		}
	}
	l.devices.loaded()
	return l, l.engine(ctx, &o, ck, ranks, core, kv)
}

// span is the ranks of this process.
func (o *LoadOptions) span() (comm.Span, error) {
	size := max(o.Ranks, 1)
	if o.Group == nil {
		return comm.Span{Last: size - 1}, nil
	}
	s := comm.Span{First: o.Group.First, Last: o.Group.Last}
	if s.First < 0 || s.Last < s.First || s.Last >= size {
		return s, fmt.Errorf("--ranks %d-%d: tensor_parallel_size is %d, so ranks go from 0 to %d", s.First, s.Last, size, size-1)
	}
	return s, nil
}

func (o *LoadOptions) parallel(rank int) model.Parallel {
	return model.Parallel{Rank: rank, Size: max(o.Ranks, 1), AttentionDP: o.AttentionDP, SplitMLP: o.SplitMLP}
}

// rank packs one rank's part of the model.
func (l *Loaded) rank(o *LoadOptions, ck *model.Checkpoint, rank int, ranks comm.Span, core executor.Config, kv tensor.KVShape) error {
	part := o.parallel(rank)
	_, kv.KVHeads = part.KVHeads(&ck.Config)
	c := backendConfig{index: rank - ranks.First, of: ranks.Len(), kv: kv, core: core, release: ck.Release}
	if part.Size > 1 {
		c.link = &lateGroup{id: rank, size: part.Size}
		l.links = append(l.links, c.link)
	}
	b, err := l.devices.make(c)
	if err != nil {
		return err
	}
	l.Backends = append(l.Backends, b)
	if err := model.Build(b, ck, part); err != nil {
		return fmt.Errorf("%s: %w", ck.Path, err)
	}
	if err := b.Seal(ck.Config.Vocab); err != nil {
		return fmt.Errorf("%s: %w", ck.Path, err)
	}
	return nil
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

// sizes fixes context length and the pool of each rank. The shape has the KV
// heads of the rank that has the most; share is the bytes for the pools of these
// ranks when nobody says how large they should be, 0 = unknown.
func (o *LoadOptions) sizes(m model.Config, ranks comm.Span, share int64) (executor.Config, tensor.KVShape) {
	core := o.Core
	core.Vocab, core.Window = m.Vocab, m.Reach()
	if core.MaxSeqLen == 0 || core.MaxSeqLen > m.Context {
		if core.MaxSeqLen > m.Context {
			o.Logger.Warn("max_seq_len is more than the model was made for", "max_seq_len", core.MaxSeqLen, "using", m.Context)
		}
		core.MaxSeqLen = m.Context
	}
	if b := core.EffectiveBatch(); b < core.MaxBatch {
		o.Logger.Warn("max_batch_size is lowered so that a step has room for a block of prefill",
			"max_batch_size", core.MaxBatch, "using", b, "max_num_tokens", core.MaxNumTokens)
		core.MaxBatch = b
	}
	kv := tensor.KVShape{
		Layers: m.Layers, HeadDim: m.HeadDim, BlockTokens: core.BlockTokens, DType: o.KVDType,
	}
	for rank := range max(o.Ranks, 1) {
		_, heads := o.parallel(rank).KVHeads(&m)
		kv.KVHeads = max(kv.KVHeads, heads)
	}
	if kv.DType == tensor.Invalid {
		kv.DType = tensor.BF16
	}
	kv.Blocks = poolBlocks(core, kv, o.PoolTokens, share/int64(ranks.Len()))
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

// engine puts the driver, and the transfer endpoint if asked for, on the devices.
func (l *Loaded) engine(ctx context.Context, o *LoadOptions, ck *model.Checkpoint, ranks comm.Span, core executor.Config, kv tensor.KVShape) (err error) {
	name := cmp.Or(o.ServedName, o.DefaultName, ownName(ck))
	core.Incarnation = o.Incarnation
	core.Layout = transfer.Layout{
		Layers: kv.Layers, KVHeads: ck.Config.KVHeads, HeadDim: kv.HeadDim, DType: kv.DType.String(), BlockTokens: kv.BlockTokens,
	}
	core.Layout.Packing, core.Layout.KeyLines = l.devices.packing(kv)
	fingerprint := ck.Fingerprint()
	tiers, err := o.tiers(&core, fingerprint, l.Backends[0].Info(), ranks)
	if err != nil {
		return err
	}
	if core.Namespace == "" {
		core.Namespace = name + "@" + fingerprint[:16]
	}
	shown := o.Wire != nil
	if o.Wire == nil && o.moves() {
		o.Wire = &wire.Config{Logger: o.Logger}
		if o.Group != nil {
			o.Wire.Host, o.Wire.Key = o.Group.Host, o.Group.Key
		}
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
		Layout: core.Layout, Vocab: core.Vocab, MaxBatch: core.MaxBatch,
		MaxNumTokens: core.MaxNumTokens, MaxSeqLen: core.MaxSeqLen, Backend: l.Backends[0].Info(),
		Ranks: 1, TensorRanks: 1, Leader: ranks.First == 0,
	}
	if shown {
		info.TransferEndpoint = core.Endpoint // else only the ranks here use it
		if elsewhere := o.AttentionDP && ranks.Len() < o.Ranks; !elsewhere && core.Role != executor.Gen {
			info.GenFirst = wire.EncodeHandle(&transfer.Handle{
				Incarnation: o.Incarnation, Endpoint: core.Endpoint, Lease: min(core.Lease, core.PeerWait), Layout: core.Layout, GenFirst: true,
			})
		}
	}
	cfg := Config{Tiers: tiers, Core: core, Info: info, Logger: o.Logger, Text: l.show, Idle: o.idle(), Stall: o.Stall, Hang: o.HangTimeout}
	switch size := max(o.Ranks, 1); {
	case size == 1:
		if cfg.Overlap = l.devices.overlap(); o.Overlap != nil {
			cfg.Overlap = *o.Overlap
		}
		if cfg.Overlap {
			cfg.Info.Backend += ", steps overlap"
		}
		err = l.alone(cfg)
	case o.AttentionDP:
		cfg.Info.Ranks = size
		err = l.attentionDP(ctx, o, cfg, ranks)
	default:
		cfg.Info.TensorRanks = size
		err = l.tensorParallel(ctx, o, cfg, ranks)
	}
	return err
}

// moves reports whether conversations may move between ranks, for which blocks
// are handed over also by a worker that hands none to others.
func (o *LoadOptions) moves() bool {
	return o.Ranks > 1 && o.AttentionDP && o.ADP.Conversations && o.ADP.Rehome && o.Core.BlockReuse
}

func (l *Loaded) alone(cfg Config) (err error) {
	l.Engine, err = New(cfg, l.Backends[0], l.transport(0, l.Backends[0]))
	return err
}

// transport connects a rank to the transfer endpoint, if there is one. Its
// messages wait for nobody, and none comes before the engine runs.
func (l *Loaded) transport(rank int, memory transfer.Memory) Transport {
	if l.server == nil {
		return nil
	}
	return l.server.Rank(rank, memory, func(ev any) { l.Engine.TransferEvent(rank, ev) })
}

// show makes the text of a request from its rule.
func (l *Loaded) show(r *request.Request) request.Text { return TextOf(l.Tokenizer, r) }

// group is the configuration of the collective of the instance.
func (o *LoadOptions) group(cfg Config) comm.Config {
	settings := o.settings(cfg)
	c := comm.Config{Size: max(o.Ranks, 1), ConfigEpoch: epochOf(settings), Settings: settings, Timeout: o.HangTimeout}
	if c.Timeout <= 0 {
		c.Timeout = -1
	}
	if o.Group != nil {
		c.Key = o.Group.Key
	}
	return c
}

// idle is how long ranks may rest: they must meet well within the time after
// which one is missed.
func (o *LoadOptions) idle() time.Duration {
	idle := cmp.Or(max(o.Idle, 0), time.Second)
	if o.Ranks > 1 && o.HangTimeout > 0 {
		idle = min(idle, o.HangTimeout/4)
	}
	return idle
}

func (o *LoadOptions) addr() string {
	if o.Group == nil {
		return ""
	}
	return o.Group.Addr
}

// attentionDP makes an engine whose ranks have requests of their own.
func (l *Loaded) attentionDP(ctx context.Context, o *LoadOptions, cfg Config, ranks comm.Span) error {
	core := &cfg.Core
	limit := core.EffectiveBatch()
	if core.Role == executor.Gen {
		limit += core.MaxConcurrentRecv
	}
	router, lost := o.ADP.Router(max(o.Ranks, 1), limit, core.BlockReuse)
	router.Rehome.On = router.Rehome.On && core.BlockReuse
	if lost {
		o.Logger.Warn("enable_kv_cache_aware_routing needs kv_cache_config.enable_block_reuse: requests are placed by the default router")
	}
	cfg.Info.Router, cfg.Info.Conversations = string(router.Kind), router.Kind == adprouter.ConversationAware
	g := GroupConfig{
		Config: cfg, Ranks: ranks, Addr: o.addr(), Comm: o.group(cfg),
		Step: lockstep.Config{
			Router: router, CountInTransfer: o.ADP.CountInTransfer, MaxQueued: core.MaxQueued, QueueTimeout: core.QueueTimeout,
		},
	}
	if o.ADP.EnableBalance {
		g.NewBalance = func() *adprouter.Balance { return o.ADP.NewBalance(core.EffectiveBatch()) }
	}
	members := make([]Member, len(l.Backends))
	for i, b := range l.Backends {
		members[i] = Member{Device: b, Transport: l.transport(ranks.First+i, b)}
	}
	var err error
	if l.Engine, err = NewGroup(g, members); err != nil {
		return err
	}
	if err := l.Engine.Connect(ctx); err != nil {
		return err
	}
	for i, link := range l.links {
		link.Comm = l.Engine.group.members[i].comm
	}
	return nil
}
