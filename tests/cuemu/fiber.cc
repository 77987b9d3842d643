/*
 * fiber.cc - stacks of CUDA threads, and the switch between them and the scheduler.
 *
 * A stack has 64 KiB below a coloured top (tops at equal distance would share cache sets) and a closed page under it. Its
 * fiber is a loop that runs whichever thread emu.cur is; so a thread that never waits costs one switch there and back,
 * and the next one runs on the same, warm stack.
 */
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef __x86_64__
#error "tests/cuemu needs an x86-64 machine (the switch of fibers)"
#endif

struct emu_stack {
    void *sp;   /* of the idle loop */
    int number;
    bool fresh; /* its loop has to be entered anew */
};

static std::vector<emu_stack *> stacks, idle;

extern "C" void cuemu_switch(void **save, void *load);
/* System V: rbx, rbp, r12..r15 belong to the caller. Control words of the FPU are never changed here. */
asm(".text\n"
    ".globl cuemu_switch\n"
    ".type cuemu_switch, @function\n"
    "cuemu_switch:\n"
    "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp, (%rdi)\n"
    "    mov %rsi, %rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
    "    ret\n"
    ".size cuemu_switch, . - cuemu_switch\n");

static uintptr_t stack_low(const emu_stack *s) { return arena_at(EMU_STACKS) + (uintptr_t)s->number * EMU_STACK_STRIDE + EMU_PAGE; }
static uintptr_t stack_top(const emu_stack *s) { return stack_low(s) + EMU_STACK + EMU_PAGE - (uintptr_t)(s->number % 32) * 128; }

bool emu_stack_has(const emu_thread *t, uintptr_t a)
{
    return t->stack && a >= stack_low(t->stack) && a < stack_low(t->stack) + EMU_STACK + EMU_PAGE;
}

bool emu_stack_guard(uintptr_t a)
{
    return arena_of(a) == EMU_STACKS && (a - arena_at(EMU_STACKS)) % EMU_STACK_STRIDE < EMU_PAGE;
}

uintptr_t emu_stack_top(const emu_thread *t) { return stack_top(t->stack); }

static void fiber_loop(void)
{
    for (;;) {
        emu_thread *t = emu.cur;
        t->block->launch->call(t->block->launch->fn, t->block->launch->args.data());
        check_settle(t);
        t->state = T_DONE;
        cuemu_switch(&t->stack->sp, emu.main_sp);
    }
}

static void stack_prepare(emu_stack *s)
{
    uintptr_t top = stack_top(s) & ~(uintptr_t)15;
    void **sp = reinterpret_cast<void **>(top);
    *--sp = nullptr; /* as if called: the stack is 8 off a multiple of 16 */
    *--sp = reinterpret_cast<void *>(fiber_loop);
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    s->sp = sp;
    s->fresh = false;
}

static emu_stack *stack_take(void)
{
    if (idle.empty()) {
        emu_stack *s = new emu_stack();
        s->number = (int)stacks.size();
        s->fresh = true;
        if (mprotect(reinterpret_cast<void *>(stack_low(s)), EMU_STACK + EMU_PAGE, PROT_READ | PROT_WRITE)) {
            fprintf(stderr, "cuemu: no memory for %zu stacks of threads\n", stacks.size() + 1);
            exit(99);
        }
        stacks.push_back(s);
        idle.push_back(s);
    }
    emu_stack *s = idle.back();
    idle.pop_back();
    if (s->fresh) stack_prepare(s);
    return s;
}

void emu_stack_drop(emu_thread *t)
{
    if (!t->stack) return;
    t->stack->fresh = true; /* it stopped in the middle of a kernel */
    idle.push_back(t->stack);
    t->stack = nullptr;
}

void emu_enter(emu_thread *t)
{
    void *sp = t->sp;
    emu.cur = t;
    emu.switches++;
    if (t->state == T_NEW) {
        t->stack = stack_take();
        t->state = T_READY;
        sp = t->stack->sp;
    }
    cuemu_switch(&emu.main_sp, sp);
    emu.cur = nullptr;
    if (t->state == T_DONE && t->stack) {
        idle.push_back(t->stack);
        t->stack = nullptr;
    }
}

void emu_leave(void)
{
    emu_thread *t = emu.cur;
    cuemu_switch(&t->sp, emu.main_sp);
}

void emu_abandon(void)
{
    emu_thread *t = emu.cur;
    t->stack->fresh = true;
    t->state = T_DONE;
    cuemu_switch(&t->sp, emu.main_sp);
    __builtin_unreachable();
}
