// Runs one scenario by name, in a process of its own.
#include "driver.h"

static std::map<std::string, void (*)()>& all() {
  static std::map<std::string, void (*)()> m;
  return m;
}
Scenario::Scenario(const char* name, void (*run)()) { all()[name] = run; }

static std::string ptx_path;
static CUmodule module_;

std::string ptx() {
  std::ifstream in(ptx_path);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

CUdeviceptr device(size_t n) {
  CUdeviceptr p;
  OK(cuMemAlloc(&p, n));
  return p;
}

CUfunction kernel(const char* name) {
  if (!module_) OK(cuModuleLoadData(&module_, ptx().c_str()));
  CUfunction f;
  OK(cuModuleGetFunction(&f, module_, name));
  return f;
}

CUstream stream() {
  CUstream s;
  OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  return s;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    for (auto& s : all()) puts(s.first.c_str());
    return 0;
  }
  auto it = all().find(argv[2]);
  if (it == all().end()) return puts("no such scenario"), 2;
  ptx_path = argv[1];
  CUcontext c;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&c, 0));
  OK(cuCtxSetCurrent(c));
  it->second();
  puts("done");
  return 0;
}
