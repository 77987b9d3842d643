/* nocheck.cc - the fast build: what check.cc does is left out. */
#include "emu.h"

bool cuemu_checked(void) { return false; }
void check_init(void) {}
void check_reset(void) {}
void check_alloc(const emu_alloc *) {}
void check_free(const emu_alloc *) {}
void check_block_start(emu_block *) {}
void check_block_end(emu_block *) {}
void check_shared(emu_block *, char *, size_t) {}
void check_barrier(emu_block *) {}
void check_syncwarp(emu_thread **, uint32_t) {}
void check_access(const void *, unsigned, bool, bool) {}
void check_acquire(const void *, bool) {}
void check_release(const void *, bool, bool) {}
void check_fence(void) {}
void check_host_copy(emu_op *) {}
void check_submit(CUstream_st *, emu_op *) {}
void check_op_start(emu_op *) {}
void check_op_done(emu_op *) {}
void check_host_wait(const emu_op *) {}
void check_node(emu_op *) {}
void check_cp(const emu_cp *, bool) {}
void check_settle(emu_thread *) {}
