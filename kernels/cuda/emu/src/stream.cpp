// Streams, events and host functions: queues of operations, run at once
// (eager) or only when something waits for them (lazy).
#include <algorithm>
#include "driver.h"

namespace tdemu {

std::shared_ptr<Stream> find_stream(Context* c, CUstream h) {
  if (!h || h == CU_STREAM_LEGACY || h == CU_STREAM_PER_THREAD) return c->null_stream;
  auto it = driver().streams.find(h);
  if (it == driver().streams.end() || it->second->destroyed) {
    refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream, or it was destroyed");
    return nullptr;
  }
  return it->second;
}

// run_front runs the first operation of a stream whose dependencies are done.
// The lock is released meanwhile.
static void run_front(Lock& lock, Stream* s) {
  Op op = std::move(s->queue.front());
  s->queue.pop_front();
  s->busy = true;
  s->runner = per_thread()->id;
  CUresult r = CUDA_SUCCESS;
  std::string why;
  if (op.run && !s->ctx->error) {
    lock.unlock();
    r = op.run(&why);
    lock.lock();
  }
  if (r) break_context(s->ctx, r, why);
  s->busy = false;
  s->done = op.seq;
  driver().changed.notify_all();
}

void drain(Lock& lock, const std::shared_ptr<Stream>& s, uint64_t upto) {
  Driver& d = driver();
  while (s->done < upto) {
    if (s->busy && s->runner == per_thread()->id) {
      // A panic of Go went past the C frames: the operation never ends.
      s->busy = false;
      s->done = s->queue.empty() ? s->pushed : s->queue.front().seq - 1;
      break_context(s->ctx, CUDA_ERROR_UNKNOWN, "a function that a stream called did not return");
      continue;
    }
    if (s->busy) {
      d.changed.wait(lock);
      continue;
    }
    const Op& front = s->queue.front();
    auto late = std::find_if(front.deps.begin(), front.deps.end(), [](const Dep& x) { return x.stream->done < x.seq; });
    if (late == front.deps.end()) {
      run_front(lock, s.get());
    } else {
      Dep first = *late;  // the queue may move on while the lock is free
      drain(lock, first.stream, first.seq);
    }
  }
}

// step runs one operation that s needs next, perhaps of another stream.
bool step(Lock& lock, const std::shared_ptr<Stream>& s) {
  if (s->queue.empty() || s->busy) return false;
  Op& front = s->queue.front();
  for (const Dep& d : front.deps)
    if (d.stream->done < d.seq) {
      auto other = d.stream;
      return step(lock, other);
    }
  run_front(lock, s.get());
  return true;
}

// drain_context runs everything. Between streams the order is that of the run,
// so that work which only happens to come in the right order shows.
void drain_context(Lock& lock, Context* c) {
  Driver& d = driver();
  Order order = order_from_env();
  for (;;) {
    std::vector<std::shared_ptr<Stream>> open;
    for (auto& s : c->streams)
      if (s->done < s->pushed) open.push_back(s);
    if (c->null_stream->done < c->null_stream->pushed) open.push_back(c->null_stream);
    if (open.empty()) break;
    size_t at = 0;
    if (order.kind == Order::reverse) at = open.size() - 1;
    if (order.kind == Order::random) {
      d.rng = d.rng * 6364136223846793005u + order.seed * 2 + 1;
      at = (d.rng >> 33) % open.size();
    }
    auto s = open[at];
    if (!step(lock, s)) drain(lock, s, s->done + 1);
  }
  auto& v = c->streams;
  v.erase(std::remove_if(v.begin(), v.end(), [](auto& s) { return s->destroyed; }), v.end());
}

// legacy_deps orders the null stream and the blocking streams of a context.
static std::vector<Dep> legacy_deps(const std::shared_ptr<Stream>& s) {
  std::vector<Dep> deps;
  Context* c = s->ctx;
  if (s == c->null_stream) {
    for (auto& o : c->streams)
      if (o->blocking() && o->done < o->pushed) deps.push_back({o, o->pushed});
  } else if (s->blocking() && c->null_stream->done < c->null_stream->pushed) {
    deps.push_back({c->null_stream, c->null_stream->pushed});
  }
  return deps;
}

static CUresult enqueue_capture(const std::shared_ptr<Stream>& s, Work run) {
  Capture& cap = *s->capture;
  if (cap.invalid) return refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cap.why);
  cap.graph->nodes.push_back({s->tails, std::move(run)});
  s->tails = {cap.graph->nodes.size() - 1};
  return CUDA_SUCCESS;
}

static CUresult push(Lock& lock, const std::shared_ptr<Stream>& s, Op op) {
  auto legacy = legacy_deps(s);
  op.deps.insert(op.deps.end(), legacy.begin(), legacy.end());
  op.seq = ++s->pushed;
  s->queue.push_back(std::move(op));
  driver().changed.notify_all();
  if (!driver().lazy) drain(lock, s, s->pushed);
  return CUDA_SUCCESS;
}

CUresult enqueue(Lock& lock, const std::shared_ptr<Stream>& s, Work run) {
  if (s->capture) return enqueue_capture(s, std::move(run));
  if (s == s->ctx->null_stream)
    for (auto& o : s->ctx->streams)
      if (o->blocking() && o->capture) {
        o->capture->invalid = true;
        o->capture->why = "the null stream was used while a blocking stream captured";
        return refuse(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, o->capture->why);
      }
  Op op;
  op.run = std::move(run);
  return push(lock, s, std::move(op));
}

static CUresult not_while_capturing(const std::shared_ptr<Stream>& s, const char* what) {
  if (!s->capture) return CUDA_SUCCESS;
  s->capture->invalid = true;
  s->capture->why = std::string(what) + " a stream inside its capture";
  return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, s->capture->why);
}

static Event* find_event(CUevent h) {
  auto it = driver().events.find(h);
  if (it != driver().events.end()) return it->second.get();
  refuse(CUDA_ERROR_INVALID_HANDLE, "no such event, or it was destroyed");
  return nullptr;
}

}  // namespace tdemu

using namespace tdemu;

extern "C" {

CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  TDEMU_ENTER(c, nullptr);
  if (flags > CU_STREAM_NON_BLOCKING) return refuse(CUDA_ERROR_INVALID_VALUE, "unknown flags of a stream");
  auto s = std::make_shared<Stream>();
  s->ctx = c.ctx;
  s->flags = flags;
  s->priority = std::max(-5, std::min(0, priority));
  c.ctx->streams.push_back(s);
  *out = reinterpret_cast<CUstream>(s.get());
  driver().streams[s.get()] = s;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

CUresult cuStreamDestroy_v2(CUstream h) {
  TDEMU_ENTER(c, nullptr);
  auto it = driver().streams.find(h);
  if (it == driver().streams.end()) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream, or it was destroyed");
  auto s = it->second;
  if (CUresult r = not_while_capturing(s, "destroyed")) return r;
  s->destroyed = true;  // its work still runs
  driver().streams.erase(it);
  auto& v = s->ctx->streams;
  if (s->done == s->pushed) v.erase(std::remove(v.begin(), v.end(), s), v.end());
  return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream h, unsigned* flags) {
  TDEMU_ENTER(c, nullptr);
  auto s = find_stream(c.ctx, h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  *flags = s->flags;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream h, int* priority) {
  TDEMU_ENTER(c, nullptr);
  auto s = find_stream(c.ctx, h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  *priority = s->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream h) {
  TDEMU_ENTER(c, nullptr);
  auto s = find_stream(c.ctx, h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult r = not_while_capturing(s, "waited for")) return r;
  for (const Dep& d : legacy_deps(s)) drain(c.lock, d.stream, d.seq);
  drain(c.lock, s, s->pushed);
  return s->ctx->error;
}

CUresult cuStreamQuery(CUstream h) {
  TDEMU_ENTER(c, nullptr);
  auto s = find_stream(c.ctx, h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult r = not_while_capturing(s, "queried")) return r;
  if (s->done == s->pushed) return s->ctx->error;
  step(c.lock, s);
  return s->ctx->error ? s->ctx->error : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamWaitEvent(CUstream h, CUevent eh, unsigned) {
  TDEMU_ENTER(c, nullptr);
  auto s = find_stream(c.ctx, h);
  Event* e = find_event(eh);
  if (!s || !e) return CUDA_ERROR_INVALID_HANDLE;
  if (!e->mark) return CUDA_SUCCESS;  // never recorded
  if (e->mark->capture) {
    if (s->capture && s->capture != e->mark->capture)
      return refuse(CUDA_ERROR_STREAM_CAPTURE_MERGE, "the event belongs to another capture than the stream");
    if (!e->mark->capture->origin)
      return refuse(CUDA_ERROR_CAPTURED_EVENT, "the event was recorded in a capture that has ended");
    join_capture(s, *e->mark);
    return CUDA_SUCCESS;
  }
  if (s->capture) {
    s->capture->invalid = true;
    s->capture->why = "a capturing stream waits for an event recorded outside of the capture";
    return refuse(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, s->capture->why);
  }
  Op op;
  op.deps.push_back({e->mark->stream, e->mark->seq});
  return push(c.lock, s, std::move(op));
}

CUresult cuLaunchHostFunc(CUstream h, CUhostFn fn, void* data) {
  TDEMU_ENTER(c, nullptr);
  auto s = find_stream(c.ctx, h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  return enqueue(c.lock, s, [fn, data](std::string*) {
    PerThread* t = per_thread();
    t->host_frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    fn(data);
    t->host_frame = 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuEventCreate(CUevent* out, unsigned flags) {
  TDEMU_ENTER(c, nullptr);
  auto e = std::make_unique<Event>();
  e->ctx = c.ctx;
  e->flags = flags;
  *out = reinterpret_cast<CUevent>(e.get());
  driver().events[e.get()] = std::move(e);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent h) {
  TDEMU_ENTER(c, nullptr);
  if (!driver().events.erase(h)) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such event, or it was destroyed");
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent h, CUstream sh) {
  TDEMU_ENTER(c, nullptr);
  auto s = find_stream(c.ctx, sh);
  Event* e = find_event(h);
  if (!s || !e) return CUDA_ERROR_INVALID_HANDLE;
  if (e->ctx != s->ctx) return refuse(CUDA_ERROR_INVALID_HANDLE, "event and stream belong to different contexts");
  auto m = std::make_shared<Mark>();
  m->stream = s;
  if (s->capture) {
    if (s->capture->invalid) return refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, s->capture->why);
    m->capture = s->capture;
    m->nodes = s->tails;
    m->seq = ~uint64_t(0);
    e->mark = m;
    return CUDA_SUCCESS;
  }
  m->seq = s->pushed + 1;
  e->mark = m;
  return enqueue(c.lock, s, [m](std::string*) {
    m->when = std::chrono::steady_clock::now();
    return CUDA_SUCCESS;
  });
}

static CUresult captured(const Event* e) {
  if (!e->mark || !e->mark->capture) return CUDA_SUCCESS;
  e->mark->capture->invalid = true;
  e->mark->capture->why = "the host waited for an event of a capture";
  return refuse(CUDA_ERROR_CAPTURED_EVENT, e->mark->capture->why);
}

CUresult cuEventSynchronize(CUevent h) {
  TDEMU_ENTER(c, nullptr);
  Event* e = find_event(h);
  if (!e) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult r = captured(e)) return r;
  auto m = e->mark;
  if (!m) return CUDA_SUCCESS;
  drain(c.lock, m->stream, m->seq);
  return m->stream->ctx->error;
}

CUresult cuEventQuery(CUevent h) {
  TDEMU_ENTER(c, nullptr);
  Event* e = find_event(h);
  if (!e) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult r = captured(e)) return r;
  auto m = e->mark;
  if (!m || m->done()) return m ? m->stream->ctx->error : CUDA_SUCCESS;
  step(c.lock, m->stream);
  return m->stream->ctx->error ? m->stream->ctx->error : CUDA_ERROR_NOT_READY;
}

CUresult cuEventElapsedTime(float* ms, CUevent a, CUevent b) {
  TDEMU_ENTER(c, nullptr);
  Event *x = find_event(a), *y = find_event(b);
  if (!x || !y) return CUDA_ERROR_INVALID_HANDLE;
  if ((x->flags | y->flags) & CU_EVENT_DISABLE_TIMING)
    return refuse(CUDA_ERROR_INVALID_HANDLE, "the event was made without timing");
  if (!x->mark || !y->mark) return refuse(CUDA_ERROR_INVALID_HANDLE, "the event was never recorded");
  if (!x->mark->done() || !y->mark->done()) return CUDA_ERROR_NOT_READY;
  *ms = std::chrono::duration<float, std::milli>(y->mark->when - x->mark->when).count();
  return CUDA_SUCCESS;
}

}  // extern "C"
