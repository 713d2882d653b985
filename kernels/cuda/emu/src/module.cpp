// Modules: the committed PTX, bound by name to the compiled sources; launches.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include "driver.h"

namespace tdemu {

namespace {

// Entry is what the text of a module says of one kernel.
struct Entry {
  std::string name;
  std::vector<unsigned> sizes;
  unsigned max_threads = 1024;
  unsigned shared = 0;
};

// Scanner reads words of PTX, comments left out. A word is a name, a number or
// a directive; any other character stands for itself.
struct Scanner {
  const char* p;
  std::string word;
  bool next() {
    for (;;) {
      while (isspace(static_cast<unsigned char>(*p))) p++;
      if (p[0] == '/' && p[1] == '/') {
        while (*p && *p != '\n') p++;
      } else if (p[0] == '/' && p[1] == '*') {
        const char* end = strstr(p, "*/");
        p = end ? end + 2 : p + strlen(p);
      } else {
        break;
      }
    }
    if (!*p) return false;
    const char* from = p++;
    auto in_word = [](char c) { return isalnum(static_cast<unsigned char>(c)) || strchr("_$%.", c); };
    if (*from == '"') {
      while (*p && *p != '"') p++;
      if (*p) p++;
    } else if (in_word(*from)) {
      while (*p && in_word(*p)) p++;
    }
    word.assign(from, p);
    return true;
  }
};

unsigned type_size(const std::string& t) {
  static const std::map<std::string, unsigned> sizes = {
      {".u8", 1},  {".s8", 1},  {".b8", 1},  {".u16", 2}, {".s16", 2}, {".b16", 2}, {".f16", 2}, {".u32", 4},
      {".s32", 4}, {".b32", 4}, {".f32", 4}, {".u64", 8}, {".s64", 8}, {".b64", 8}, {".f64", 8},
  };
  auto it = sizes.find(t);
  return it == sizes.end() ? 0 : it->second;
}

// declaration reads a type, a name and perhaps a length in brackets: the rest
// of a parameter or shared variable. It stops at the sign behind.
unsigned declaration(Scanner& s, std::string* name) {
  unsigned size = 0;
  while (s.next() && s.word != "," && s.word != ")" && s.word != ";") {
    if (s.word == ".align") {
      s.next();
    } else if (s.word == "[") {
      s.next();
      size *= static_cast<unsigned>(atoi(s.word.c_str()));
    } else if (unsigned n = type_size(s.word)) {
      size = n;
    } else if (s.word != "]" && s.word[0] != '.' && name) {
      *name = s.word;
    }
  }
  return size;
}

void read_body(Scanner& s, Entry& e, const std::map<std::string, unsigned>& shared) {
  std::set<std::string> used;
  for (int depth = 1; depth > 0 && s.next();) {
    if (s.word == "{") depth++;
    if (s.word == "}") depth--;
    if (s.word == ".shared") e.shared += declaration(s, nullptr);
    auto it = shared.find(s.word);
    if (it != shared.end() && used.insert(s.word).second) e.shared += it->second;
  }
}

std::string read_entry(Scanner& s, Entry& e, const std::map<std::string, unsigned>& shared) {
  s.next();
  e.name = s.word;
  if (!s.next()) return "the text ends in the entry " + e.name;
  if (s.word == "(") {
    do {
      if (!s.next()) return "the text ends in the parameters of " + e.name;
      if (s.word != ".param") break;
      unsigned n = declaration(s, nullptr);
      if (!n) return "a parameter of " + e.name + " has an unknown type";
      e.sizes.push_back(n);
    } while (s.word == ",");
  }
  while (s.word != "{") {
    if (s.word == ".maxntid" || s.word == ".reqntid") {
      e.max_threads = 1;
      do {
        s.next();
        e.max_threads *= static_cast<unsigned>(atoi(s.word.c_str()));
      } while (s.next() && s.word == ",");
    } else if (!s.next()) {
      return "the entry " + e.name + " has no body";
    }
  }
  read_body(s, e, shared);
  return "";
}

// parse reads the entries of a module; the text says what is wrong with it.
std::string parse(const char* text, std::vector<Entry>* out) {
  Scanner s{text, {}};
  std::map<std::string, unsigned> shared;
  bool version = false;
  while (s.next()) {
    if (s.word == ".version") {
      s.next();
      version = true;
      if (atof(s.word.c_str()) > 9.0) return "PTX " + s.word + " is newer than drivers of CUDA 13.0 take";
    } else if (s.word == ".target") {
      s.next();
      int sm = s.word.rfind("sm_", 0) == 0 ? atoi(s.word.c_str() + 3) : 0;
      if (sm == 0 || sm > 90) return "!the target " + s.word + " does not fit the device, which is sm_90";
    } else if (s.word == ".shared") {
      std::string name;
      unsigned n = declaration(s, &name);
      shared[name] = n;
    } else if (s.word == ".entry") {
      Entry e;
      std::string why = read_entry(s, e, shared);
      if (!why.empty()) return why;
      out->push_back(e);
    } else if (s.word == "{") {  // the body of a function
      Entry ignored;
      read_body(s, ignored, {});
    }
  }
  return version ? "" : "the text has no .version: it is no PTX";
}

std::string list(const std::vector<unsigned>& v) {
  std::string s;
  for (unsigned n : v) s += (s.empty() ? "" : ",") + std::to_string(n);
  return "(" + s + ")";
}

std::string bind(const Entry& e, const Kernel** k) {
  *k = table_find(e.name.c_str());
  if (!*k) return "kernel " + e.name + " of the PTX is not in the compiled sources; the PTX is stale";
  if ((*k)->sizes != e.sizes)
    return "kernel " + e.name + ": parameters of " + list(e.sizes) + " bytes in the PTX, of " + list((*k)->sizes) +
           " in the source; the PTX is stale";
  return "";
}

// invalid writes the reason to the caller's log as well.
CUresult invalid(CUresult code, const std::string& why, unsigned n, CUjit_option* opts, void** vals) {
  char* log = nullptr;
  size_t size = 0;
  for (unsigned i = 0; i < n; i++) {
    if (opts[i] == CU_JIT_ERROR_LOG_BUFFER) log = static_cast<char*>(vals[i]);
    if (opts[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) size = reinterpret_cast<size_t>(vals[i]);
  }
  if (log && size) snprintf(log, size, "%s", why.c_str());
  return refuse(code, why);
}

Function* find_function(CUfunction h) {
  auto it = driver().functions.find(h);
  if (it != driver().functions.end()) return it->second;
  refuse(CUDA_ERROR_INVALID_HANDLE, "no such kernel, or its module was unloaded");
  return nullptr;
}

CUresult check_shape(const Function* f, dim3 g, dim3 b, unsigned shared) {
  auto bad = [&](CUresult code, const std::string& what) {
    return refuse(code, std::string("launch of ") + f->kernel->name + ": " + what);
  };
  uint64_t threads = uint64_t(b.x) * b.y * b.z;
  if (!g.x || !g.y || !g.z || !threads) return bad(CUDA_ERROR_INVALID_VALUE, "a grid or block of size 0");
  if (g.x > 2147483647u || g.y > 65535 || g.z > 65535)
    return bad(CUDA_ERROR_INVALID_VALUE, "the grid is too large: only x may be above 65535");
  if (b.x > 1024 || b.y > 1024 || b.z > 64 || threads > 1024)
    return bad(CUDA_ERROR_INVALID_VALUE, "the block has " + std::to_string(threads) + " threads, 1024 is the limit");
  if (threads > f->max_threads)
    return bad(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "the block has " + std::to_string(threads) +
                                                       " threads, its launch bounds allow " +
                                                       std::to_string(f->max_threads));
  if (shared > static_cast<unsigned>(f->max_dynamic) || shared + f->static_shared > kMaxShared)
    return bad(CUDA_ERROR_INVALID_VALUE, std::to_string(shared) + " bytes of dynamic shared memory, " +
                                             std::to_string(f->max_dynamic) +
                                             " are allowed; raise the function's attribute");
  return CUDA_SUCCESS;
}

// unreachable finds an argument that points to memory of a device whose peer
// access is not enabled: the hardware would fault at the first use.
std::string unreachable(Context* c, const std::vector<uint64_t>& cells) {
  for (uint64_t v : cells) {
    Allocation a;
    std::string none;
    if (!device_find(v, 1, &a, &none) || a.device < 0 || a.device == c->device) continue;
    bool enabled = false;
    for (Context* p : c->peers) enabled = enabled || p->device == a.device;
    if (!enabled)
      return "an argument points to memory of device " + std::to_string(a.device) + ", which device " +
             std::to_string(c->device) + " was not allowed to reach";
  }
  return "";
}

CUresult launch_on(CUfunction fh, dim3 g, dim3 b, unsigned shared, CUstream h, void** params, void** extra) {
  TDEMU_ENTER(c, nullptr);
  Function* f = find_function(fh);
  auto s = find_stream(c.ctx, h);
  if (!f || !s) return CUDA_ERROR_INVALID_HANDLE;
  if (f->module->ctx != s->ctx) return refuse(CUDA_ERROR_INVALID_HANDLE, "kernel and stream belong to different contexts");
  if (extra) return refuse(CUDA_ERROR_NOT_SUPPORTED, "packed arguments are not emulated");
  if (CUresult r = check_shape(f, g, b, shared)) return r;
  if (CUresult r = s->capture ? CUDA_SUCCESS : launch_room(c.ctx->device)) return r;
  const Kernel* k = f->kernel;
  if (!params && !k->sizes.empty()) return refuse(CUDA_ERROR_INVALID_VALUE, "the kernel has parameters, none are given");
  // The cells are read now; the caller may reuse them.
  std::vector<uint64_t> cells(k->sizes.size());
  for (size_t i = 0; i < cells.size(); i++) memcpy(&cells[i], params[i], k->sizes[i]);
  std::string bad = unreachable(s->ctx, cells);
  if (!bad.empty()) bad = std::string("kernel ") + k->name + ": " + bad;
  return enqueue(c.lock, s, [k, g, b, shared, cells, bad](std::string* why) {
    if (!bad.empty()) return *why = bad, CUDA_ERROR_ILLEGAL_ADDRESS;
    std::vector<void*> p(cells.size());
    for (size_t i = 0; i < p.size(); i++) p[i] = const_cast<uint64_t*>(&cells[i]);
    return static_cast<CUresult>(launch(k, g, b, shared, p.data(), why));
  });
}

}  // namespace
}  // namespace tdemu

using namespace tdemu;

extern "C" {

CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned n, CUjit_option* opts, void** vals) {
  TDEMU_ENTER(c, "cuModuleLoadData");
  *out = nullptr;
  auto* text = static_cast<const char*>(image);
  if (!memcmp(text, "\177ELF", 4))
    return invalid(CUDA_ERROR_NO_BINARY_FOR_GPU, "the emulator takes PTX, no cubin", n, opts, vals);
  std::vector<Entry> entries;
  std::string why = parse(text, &entries);
  if (!why.empty() && why[0] == '!')
    return invalid(CUDA_ERROR_NO_BINARY_FOR_GPU, why.substr(1), n, opts, vals);
  auto m = std::make_unique<Module>();
  m->ctx = c.ctx;
  for (const Entry& e : entries) {
    auto f = std::make_unique<Function>();
    std::string w = bind(e, &f->kernel);
    if (!w.empty()) why += (why.empty() ? "" : "\n") + w;
    f->module = m.get();
    f->max_threads = e.max_threads;
    f->static_shared = e.shared;
    m->functions[e.name] = std::move(f);
  }
  if (!why.empty()) return invalid(CUDA_ERROR_INVALID_IMAGE, why, n, opts, vals);
  for (auto& f : m->functions) driver().functions[f.second.get()] = f.second.get();
  *out = reinterpret_cast<CUmodule>(m.get());
  driver().modules[m.get()] = std::move(m);
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* out, const void* image) { return cuModuleLoadDataEx(out, image, 0, nullptr, nullptr); }

CUresult cuModuleLoad(CUmodule* out, const char* path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return refuse(CUDA_ERROR_FILE_NOT_FOUND, path);
  std::stringstream text;
  text << in.rdbuf();
  return cuModuleLoadData(out, text.str().c_str());
}

CUresult cuModuleUnload(CUmodule h) {
  TDEMU_ENTER(c, "cuModuleUnload");
  auto it = driver().modules.find(h);
  if (it == driver().modules.end()) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such module, or it was unloaded");
  drain_context(c.lock, c.ctx);
  for (auto& f : it->second->functions) driver().functions.erase(f.second.get());
  driver().modules.erase(it);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule h, const char* name) {
  TDEMU_ENTER(c, nullptr);
  auto it = driver().modules.find(h);
  if (it == driver().modules.end()) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such module, or it was unloaded");
  auto f = it->second->functions.find(name);
  if (f == it->second->functions.end())
    return refuse(CUDA_ERROR_NOT_FOUND, std::string("the module has no kernel ") + name);
  return *out = reinterpret_cast<CUfunction>(f->second.get()), CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr*, size_t*, CUmodule, const char* name) {
  return refuse(CUDA_ERROR_NOT_FOUND, std::string("variables of modules are not emulated: ") + name);
}

CUresult cuFuncSetAttribute(CUfunction h, CUfunction_attribute a, int v) {
  TDEMU_ENTER(c, nullptr);
  Function* f = find_function(h);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  if (a != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  int limit = static_cast<int>(kMaxShared - f->static_shared);
  if (v < 0 || v > limit)
    return refuse(CUDA_ERROR_INVALID_VALUE, std::to_string(v) + " bytes of dynamic shared memory, the limit of " +
                                                f->kernel->name + " is " + std::to_string(limit));
  f->max_dynamic = v;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction h) {
  TDEMU_ENTER(c, nullptr);
  Function* f = find_function(h);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  switch (a) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = static_cast<int>(f->max_threads); break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *v = static_cast<int>(f->static_shared); break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *v = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *v = 90; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *v = f->max_dynamic; break;
    default: *v = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction h, int threads, size_t shared) {
  TDEMU_ENTER(c, nullptr);
  Function* f = find_function(h);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  if (threads <= 0) return refuse(CUDA_ERROR_INVALID_VALUE, "a block of no threads");
  int by_threads = 2048 / threads, by_shared = static_cast<int>((228u << 10) / (shared + f->static_shared + 1024));
  *n = std::min(32, std::min(by_threads, by_shared));
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream s, void** params, void** extra) {
  return launch_on(f, {gx, gy, gz}, {bx, by, bz}, shared, s, params, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* k, CUfunction f, void** params, void** extra) {
  for (unsigned i = 0; i < k->numAttrs; i++) {
    const auto& v = k->attrs[i].value;
    if (k->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && (v.clusterDim.x > 1 || v.clusterDim.y > 1 || v.clusterDim.z > 1))
      return refuse(CUDA_ERROR_NOT_SUPPORTED, "clusters are not emulated");
  }
  return launch_on(f, {k->gridDimX, k->gridDimY, k->gridDimZ}, {k->blockDimX, k->blockDimY, k->blockDimZ},
                   k->sharedMemBytes, k->hStream, params, extra);
}

}  // extern "C"
