/*
 * check.h - the order of events, and the record of accesses, of the checked build.
 *
 * Each 4 bytes of device, pinned and shared memory have a cell of two stamps: the last writer and the last reader. Once a part
 * of the word is accessed, each of its bytes has a cell. And each byte has a bit: written.
 * A stamp says who (uid: a block, or a copy; tid: the thread in it) and when: `epoch` counts the barriers of the block,
 * `sub` the thread's releases and __syncwarp since the barrier.
 *
 * What a thread knows to have happened: of its block all of earlier epochs, of its warp all before the last __syncwarp, and
 * what a `know` holds: a clock over stream slots (an operation of a stream with seq <= clock[slot] is complete) and entries
 * that came with flags: of block uid, all of epochs < epoch, and of thread tid all up to sub. The know of a block is
 * that of its launch and of what its threads acquired before the last barrier; a thread has one of its own since then.
 * A conflicting access that is not known to have happened is a race, whatever the order was in this run.
 *
 * Blind spots: of readers in several blocks the last one is kept; a partial __syncwarp
 * counts as a full one; fences have system scope; beyond 4,095 barriers a block, and 1,023 releases between two,
 * events count as ordered. Host code is not seen: pinned memory counts as written.
 */
#ifndef CUEMU_CHECK_H
#define CUEMU_CHECK_H
#include "emu.h"

struct check_entry { uint32_t uid; uint16_t epoch, tid, sub, warp_sub; };
struct check_know {
    uint32_t clock[EMU_SLOTS];
    std::vector<check_entry> entries;
};
typedef std::shared_ptr<check_know> know_ref;

enum { EPOCH_MAX = 4095, SUB_MAX = 1023, UID_MAX = (1 << 24) - 1 };
enum { STAMP_ATOMIC = 1, STAMP_WARP = 2, STAMP_BLOCK = 4 }; /* several readers: of one warp, of several */

struct stamp {
    uint64_t uid : 24, tid : 10, epoch : 12, sub : 10, flags : 3, split : 1; /* split, of a writer: the bytes' cells count */
};
struct cell { stamp w, r; };

/* Who is who, by uid. */
struct check_launch_info { std::string name; int device; dim3 grid, block; uint32_t slot, seq; };
struct check_uid { uint32_t launch, block; };
extern std::vector<check_launch_info> check_launches;
extern std::vector<check_uid> check_uids;
uint32_t check_uid_new(uint32_t launch, uint32_t block);

know_ref know_merge(const know_ref &a, const know_ref &b);
bool know_has(const check_know *k, const stamp &s);
void check_order_reset(void);

static const uintptr_t CELLS = 0x300000000000u, WRITTEN = 0x380000000000u, BYTE_CELLS = 0x400000000000u;
static inline cell *cell_of(uintptr_t a) { return reinterpret_cast<cell *>(CELLS + (a - ARENA_BASE) / 4 * sizeof(cell)); }
static inline cell *byte_cells_of(uintptr_t word) { return reinterpret_cast<cell *>(BYTE_CELLS + (word - ARENA_BASE) * sizeof(cell)); }
static inline uint8_t *written_of(uintptr_t a) { return reinterpret_cast<uint8_t *>(WRITTEN + (a - ARENA_BASE) / 8); }
bool written_all(uintptr_t a, size_t n);
void written_set(uintptr_t a, size_t n, bool yes);

#endif
