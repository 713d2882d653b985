// Scenarios of the fake NCCL: two ranks on two devices, in threads and in processes.
#include <unistd.h>
#include <sys/wait.h>
#include <thread>
#include "driver.h"

struct Id {
  char bytes[128];
};
extern "C" {
int ncclGetUniqueId(Id*);
int ncclCommInitRank(void**, int, Id, int);
int ncclCommDestroy(void*);
int ncclCommAbort(void*);
int ncclCommGetAsyncError(void*, int*);
int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
int ncclAllGather(const void*, void*, size_t, int, void*, void*);
int ncclReduceScatter(const void*, void*, size_t, int, int, void*, void*);
int ncclBroadcast(const void*, void*, size_t, int, int, void*, void*);
int ncclSend(const void*, size_t, int, int, void*, void*);
int ncclRecv(void*, size_t, int, int, void*, void*);
int ncclGroupStart();
int ncclGroupEnd();
const char* ncclGetLastError(void*);
}
#define NC(x)                                                                                       \
  do {                                                                                              \
    int r_ = (x);                                                                                   \
    if (r_) printf("FAIL line %d: %s: %d %s\n", __LINE__, #x, r_, ncclGetLastError(nullptr)), fflush(stdout), _Exit(1); \
  } while (0)

// ranks runs fn in two threads, each with a device and a stream.
static void ranks(const std::function<void(int rank, Id id, CUstream s)>& fn, bool same_device = false) {
  Id id;
  NC(ncclGetUniqueId(&id));
  std::vector<std::thread> all;
  for (int r = 0; r < 2; r++)
    all.emplace_back([&, r] {
      CUcontext c;
      OK(cuDevicePrimaryCtxRetain(&c, same_device ? 0 : r));
      OK(cuCtxSetCurrent(c));
      fn(r, id, stream());
    });
  for (auto& t : all) t.join();
}

static void check_all(int rank, Id id, CUstream s) {
  void* c;
  NC(ncclCommInitRank(&c, 2, id, rank));
  const int n = 200000;  // several chunks
  std::vector<int> h((size_t)n * 2);
  for (int i = 0; i < 2 * n; i++) h[(size_t)i] = i * (rank + 1);
  CUdeviceptr x = put(h), y = device((size_t)n * 8);
  auto *px = (char*)x, *py = (char*)y;
  NC(ncclAllReduce(px, py, (size_t)n, 2, 0, c, s));
  OK(cuStreamSynchronize(s));
  TRUE(get<int>(y, (size_t)n)[199999] == 3 * 199999);
  NC(ncclAllGather(px, py, (size_t)n, 2, c, s));
  OK(cuStreamSynchronize(s));
  auto got = get<int>(y, (size_t)n * 2);
  TRUE(got[77] == 77 && got[(size_t)n + 150000] == 2 * 150000);
  NC(ncclReduceScatter(px, py, (size_t)n, 2, 0, c, s));
  OK(cuStreamSynchronize(s));
  TRUE(get<int>(y, (size_t)n)[5] == 3 * (rank * n + 5));
  NC(ncclBroadcast(px, py, (size_t)n, 2, 1, c, s));
  OK(cuStreamSynchronize(s));
  TRUE(get<int>(y, (size_t)n)[9] == 18);
  NC(ncclGroupStart());
  NC(ncclSend(px, (size_t)n, 2, 1 - rank, c, s));
  NC(ncclRecv(py, (size_t)n, 2, 1 - rank, c, s));
  NC(ncclGroupEnd());
  OK(cuStreamSynchronize(s));
  TRUE(get<int>(y, (size_t)n)[123456] == 123456 * (2 - rank));
  std::vector<unsigned short> b(1000, rank ? 0x4000 : 0x3f80);  // 2, 1
  CUdeviceptr z = put(b);
  NC(ncclAllReduce((void*)z, (void*)z, 1000, 9, 0, c, s));
  OK(cuStreamSynchronize(s));
  TRUE(get<unsigned short>(z, 1000)[999] == 0x4040);  // 3
  NC(ncclCommDestroy(c));
}

SCENARIO(nccl_threads) { ranks(check_all); }

SCENARIO(nccl_processes) {
  Id id;
  NC(ncclGetUniqueId(&id));
  char path[200];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  TRUE(n > 0);
  path[n] = 0;
  pid_t child[2];
  for (int r = 0; r < 2; r++)
    if (!(child[r] = fork())) {
      setenv("NCCL_TEST_ID", id.bytes, 1);
      setenv("NCCL_TEST_RANK", r ? "1" : "0", 1);
      execl(path, path, "none", "nccl_child", (char*)nullptr);
      _Exit(1);
    }
  for (int r = 0; r < 2; r++) {
    int status;
    TRUE(waitpid(child[r], &status, 0) == child[r] && status == 0);
  }
}
SCENARIO(nccl_child) {
  Id id{};
  strncpy(id.bytes, getenv("NCCL_TEST_ID"), sizeof id.bytes - 1);
  int rank = atoi(getenv("NCCL_TEST_RANK"));
  CUcontext c;
  OK(cuDevicePrimaryCtxRetain(&c, rank));
  OK(cuCtxSetCurrent(c));
  check_all(rank, id, stream());
}

SCENARIO(nccl_one_device_twice) {
  ranks([](int rank, Id id, CUstream) {
    void* c;
    TRUE(ncclCommInitRank(&c, 2, id, rank) == 5);
  }, true);
}

// Rank 1 gives up while rank 0 waits for it.
SCENARIO(nccl_abort) {
  ranks([](int rank, Id id, CUstream s) {
    void* c;
    NC(ncclCommInitRank(&c, 2, id, rank));
    if (rank == 1) {
      NC(ncclCommAbort(c));
      return;
    }
    CUdeviceptr x = put(iota(64));
    NC(ncclAllReduce((void*)x, (void*)x, 64, 2, 0, c, s));
    OK(cuStreamSynchronize(s));
    int r;
    NC(ncclCommGetAsyncError(c, &r));
    TRUE(r == 6);
  });
}

SCENARIO(nccl_ranks_disagree) {
  ranks([](int rank, Id id, CUstream s) {
    void* c;
    NC(ncclCommInitRank(&c, 2, id, rank));
    CUdeviceptr x = put(iota(64));
    NC(ncclAllReduce((void*)x, (void*)x, rank ? 64 : 32, 2, 0, c, s));
    WANT(719, cuStreamSynchronize(s));
  });
}
