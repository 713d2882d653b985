#include "switch.h"

#ifndef TDEMU_UCONTEXT
// tdemu_resume is the second half alone: a fault handler continues there with
// the stack pointer of a saved context.
asm(R"(
.text
.globl tdemu_switch
.hidden tdemu_switch
.type tdemu_switch,@function
tdemu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
.globl tdemu_resume
.hidden tdemu_resume
.type tdemu_resume,@function
tdemu_resume:
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tdemu_switch, .-tdemu_switch
)");
#endif
