// The kernel table: every kernel of the compiled sources by name, with the
// sizes of its parameters and a call that unpacks them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace tdemu {

struct Kernel {
  const char* name;
  void (*call)(void* const* params);
  std::vector<unsigned> sizes;
};

void table_add(Kernel k);
const Kernel* table_find(const char* name);
const std::vector<Kernel>& table();

template <class F>
struct Register;

template <class... A>
struct Register<void (*)(A...)> {
  template <void (*Fn)(A...)>
  static void add(const char* name) {
    table_add({name, &call<Fn>, {static_cast<unsigned>(sizeof(A))...}});
  }
  template <void (*Fn)(A...)>
  static void call(void* const* p) {
    unpack<Fn>(p, std::index_sequence_for<A...>{});
  }
  template <void (*Fn)(A...), size_t... I>
  static void unpack(void* const* p, std::index_sequence<I...>) {
    (void)p;
    Fn(*static_cast<std::remove_const_t<A>*>(p[I])...);
  }
};

// A parameter wider than 8 bytes cannot travel in a launch cell.
#define TDEMU_KERNEL(FN)                                                        \
  namespace {                                                                   \
  struct tdemu_reg_##FN {                                                       \
    tdemu_reg_##FN() { ::tdemu::Register<decltype(&FN)>::template add<&FN>(#FN); } \
  } tdemu_reg_##FN##_;                                                          \
  }

}  // namespace tdemu
