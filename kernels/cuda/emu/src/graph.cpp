// Stream capture and graphs.
#include <algorithm>
#include "driver.h"

namespace tdemu {

void join_capture(const std::shared_ptr<Stream>& s, const Mark& m) {
  s->capture = m.capture;
  for (size_t n : m.nodes)
    if (std::find(s->tails.begin(), s->tails.end(), n) == s->tails.end()) s->tails.push_back(n);
}

// reached marks the nodes that the given ones depend on, themselves included.
static std::vector<bool> reached(const Graph& g, const std::vector<size_t>& from) {
  std::vector<bool> seen(g.nodes.size());
  for (size_t n : from) seen[n] = true;
  for (size_t i = g.nodes.size(); i-- > 0;)
    if (seen[i])
      for (size_t d : g.nodes[i].deps) seen[d] = true;
  return seen;
}

// graph_work runs the nodes in an order that their dependencies allow, by the
// order of the run: first, last or any node that is ready.
Work graph_work(std::shared_ptr<Graph> g) {
  return [g](std::string* why) {
    Order order = order_from_env();
    uint64_t rng = order.seed * 0x9e3779b97f4a7c15u + 1;
    std::vector<bool> done(g->nodes.size());
    for (size_t left = g->nodes.size(); left > 0; left--) {
      std::vector<size_t> ready;
      for (size_t i = 0; i < g->nodes.size(); i++) {
        const auto& deps = g->nodes[i].deps;
        if (!done[i] && std::all_of(deps.begin(), deps.end(), [&](size_t d) { return done[d]; })) ready.push_back(i);
        if (order.kind == Order::forward && !ready.empty()) break;
      }
      size_t at = order.kind == Order::reverse ? ready.size() - 1 : 0;
      if (order.kind == Order::random) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        at = (rng >> 33) % ready.size();
      }
      done[ready[at]] = true;
      const Work& run = g->nodes[ready[at]].run;
      if (CUresult r = run ? run(why) : CUDA_SUCCESS) return r;
    }
    return CUDA_SUCCESS;
  };
}

}  // namespace tdemu

using namespace tdemu;

extern "C" {

CUresult cuStreamBeginCapture_v2(CUstream h, CUstreamCaptureMode mode) {
  TDEMU_ENTER(c, nullptr);
  auto s = find_stream(c.ctx, h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (s == c.ctx->null_stream)
    return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the null stream cannot capture");
  if (s->capture) return refuse(CUDA_ERROR_ILLEGAL_STATE, "the stream captures already");
  auto cap = std::make_shared<Capture>();
  cap->origin = s.get();
  cap->mode = mode;
  cap->thread = per_thread()->id;
  s->capture = cap;
  s->tails.clear();
  driver().captures.push_back(cap);
  return CUDA_SUCCESS;
}

// end_capture takes all streams out of a capture and says whether a forked
// stream did not come back.
static bool end_capture(const std::shared_ptr<Capture>& cap, const std::vector<size_t>& tails) {
  auto seen = reached(*cap->graph, tails);
  bool joined = true;
  for (auto& d : driver().streams) {
    Stream* o = d.second.get();
    if (o->capture != cap) continue;
    for (size_t n : o->tails) joined = joined && seen[n];
    o->capture = nullptr;
    o->tails.clear();
  }
  cap->origin = nullptr;
  return joined;
}

CUresult cuStreamEndCapture(CUstream h, CUgraph* out) {
  TDEMU_ENTER(c, nullptr);
  *out = nullptr;
  auto s = find_stream(c.ctx, h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  auto cap = s->capture;
  if (!cap) return refuse(CUDA_ERROR_ILLEGAL_STATE, "the stream does not capture");
  if (cap->origin != s.get())
    return refuse(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture began on another stream");
  if (cap->mode != CU_STREAM_CAPTURE_MODE_RELAXED && cap->thread != per_thread()->id)
    return refuse(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture began on another thread");
  bool joined = end_capture(cap, std::vector<size_t>(s->tails));
  if (cap->invalid) return refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cap->why);
  if (!joined)
    return refuse(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a stream joined the capture and did not come back by an event");
  *out = reinterpret_cast<CUgraph>(cap->graph.get());
  driver().graphs[cap->graph.get()] = cap->graph;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream h, CUstreamCaptureStatus* st) {
  TDEMU_ENTER(c, nullptr);
  auto s = find_stream(c.ctx, h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  *st = !s->capture            ? CU_STREAM_CAPTURE_STATUS_NONE
        : s->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

static std::shared_ptr<Graph> find_graph(std::unordered_map<void*, std::shared_ptr<Graph>>& in, void* h) {
  auto it = in.find(h);
  if (it != in.end()) return it->second;
  refuse(CUDA_ERROR_INVALID_VALUE, "no such graph, or it was destroyed");
  return nullptr;
}

CUresult cuGraphGetNodes(CUgraph h, CUgraphNode* nodes, size_t* count) {
  TDEMU_ENTER(c, nullptr);
  auto g = find_graph(driver().graphs, h);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  if (nodes) {
    for (size_t i = 0; i < *count; i++)
      nodes[i] = i < g->nodes.size() ? reinterpret_cast<CUgraphNode>(&g->nodes[i]) : nullptr;
    *count = std::min(*count, g->nodes.size());
  } else {
    *count = g->nodes.size();
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph h) {
  TDEMU_ENTER(c, nullptr);
  if (!driver().graphs.erase(h)) return refuse(CUDA_ERROR_INVALID_VALUE, "no such graph, or it was destroyed");
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph h, unsigned long long) {
  TDEMU_ENTER(c, nullptr);
  auto g = find_graph(driver().graphs, h);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  auto copy = std::make_shared<Graph>(*g);
  *out = reinterpret_cast<CUgraphExec>(copy.get());
  driver().execs[copy.get()] = copy;
  return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec h, CUstream sh) {
  TDEMU_ENTER(c, nullptr);
  if (!find_stream(c.ctx, sh)) return CUDA_ERROR_INVALID_HANDLE;
  return find_graph(driver().execs, h) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphLaunch(CUgraphExec h, CUstream sh) {
  TDEMU_ENTER(c, nullptr);
  auto g = find_graph(driver().execs, h);
  auto s = find_stream(c.ctx, sh);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture) return refuse(CUDA_ERROR_NOT_SUPPORTED, "a graph inside a capture is not emulated");
  if (CUresult r = launch_room(c.ctx->device)) return r;
  return enqueue(c.lock, s, graph_work(g));
}

CUresult cuGraphExecDestroy(CUgraphExec h) {
  TDEMU_ENTER(c, nullptr);
  if (!driver().execs.erase(h)) return refuse(CUDA_ERROR_INVALID_VALUE, "no such graph, or it was destroyed");
  return CUDA_SUCCESS;
}

}  // extern "C"
