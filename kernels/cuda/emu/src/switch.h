// Switching between fibers of one OS thread. On x86-64 a hand-written
// switch (six pushes, swap the stack pointer, six pops); elsewhere, or with
// TDEMU_UCONTEXT, the C library's ucontext, which makes system calls.
#pragma once
#include <ucontext.h>
#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) && !defined(TDEMU_UCONTEXT)
#define TDEMU_UCONTEXT 1
#endif

namespace tdemu {

#ifdef TDEMU_UCONTEXT
struct Saved {
  ucontext_t uc;
};

inline void context_init(Saved& c, char* low, size_t size, void (*entry)()) {
  getcontext(&c.uc);
  c.uc.uc_stack.ss_sp = low;
  c.uc.uc_stack.ss_size = size;
  c.uc.uc_link = nullptr;
  makecontext(&c.uc, entry, 0);
}
inline void context_switch(Saved& from, Saved& to) { swapcontext(&from.uc, &to.uc); }

// context_escape leaves a signal handler for the context `to` and does not
// return to the interrupted code.
inline void context_escape(ucontext_t*, Saved& to) { setcontext(&to.uc); }
#else
struct Saved {
  void* sp;
};

extern "C" void tdemu_switch(void** save, void* to);
extern "C" void tdemu_resume();

inline void context_init(Saved& c, char* low, size_t size, void (*entry)()) {
  // The switch pops six registers and returns into entry, whose frame must
  // see a stack pointer of 8 modulo 16, as after a call.
  auto** top = reinterpret_cast<void**>(low + size);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  c.sp = top;
}
inline void context_switch(Saved& from, Saved& to) { tdemu_switch(&from.sp, to.sp); }

inline void context_escape(ucontext_t* uc, Saved& to) {
  uc->uc_mcontext.gregs[REG_RSP] = reinterpret_cast<greg_t>(to.sp);
  uc->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(&tdemu_resume);
}
#endif

}  // namespace tdemu
