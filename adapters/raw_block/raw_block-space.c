/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Free slots: a bit each, never on the device. A search goes on where the last one ended, so that
 * an empty store is written from front to back; at worst it looks at each word once (1,000,000
 * slots: 16 thousand).
 */

#include <string.h>

#include "raw_block.h"

#define WORD_BITS 64u

void
raw_block_space_init(RawBlockSpace *space, uint32_t n_slots)
{
	*space = (RawBlockSpace){.n_slots = n_slots, .n_free = n_slots};
	space->used = g_new0(uint64_t, n_slots / WORD_BITS + 1);
}

void
raw_block_space_deinit(RawBlockSpace *space)
{
	g_clear_pointer(&space->used, g_free);
}

static void
set_used(RawBlockSpace *space, RawBlockRun run, bool used)
{
	for (uint32_t slot = run.slot; slot < run.slot + run.n; slot++) {
		uint64_t bit = UINT64_C(1) << slot % WORD_BITS;

		if (used)
			space->used[slot / WORD_BITS] |= bit;
		else
			space->used[slot / WORD_BITS] &= ~bit;
	}
	space->n_free = used ? space->n_free - run.n : space->n_free + run.n;
}

/* The first slot from FROM on (below END) that is used or not; END: there is none. */
static uint32_t
find(const RawBlockSpace *space, uint32_t from, uint32_t end, bool used)
{
	while (from < end) {
		uint64_t word = space->used[from / WORD_BITS];
		uint64_t wanted = (used ? word : ~word) >> from % WORD_BITS;

		if (wanted)
			return MIN(end, from + (uint32_t)__builtin_ctzll(wanted));
		from += WORD_BITS - from % WORD_BITS;
	}
	return end;
}

/* The first N free slots that begin in [FROM, END). */
static bool
take_between(RawBlockSpace *space, uint32_t from, uint32_t end, uint32_t n, RawBlockRun *run)
{
	for (;;) {
		uint32_t slot = find(space, from, end, false);

		if (slot >= end || n > space->n_slots - slot)
			return false;
		uint32_t stop = find(space, slot, slot + n, true);
		if (stop == slot + n) {
			*run = (RawBlockRun){slot, n};
			set_used(space, *run, true);
			space->next = slot + n;
			return true;
		}
		from = stop;
	}
}

bool
raw_block_space_take(RawBlockSpace *space, uint32_t n, RawBlockRun *run)
{
	*run = (RawBlockRun){0};
	if (n == 0)
		return true;
	if (n > space->n_free)
		return false;
	return take_between(space, space->next, space->n_slots, n, run) ||
	       take_between(space, 0, space->next, n, run);
}

void
raw_block_space_give(RawBlockSpace *space, RawBlockRun run)
{
	set_used(space, run, false);
}

bool
raw_block_space_claim(RawBlockSpace *space, RawBlockRun run)
{
	if (find(space, run.slot, run.slot + run.n, true) != run.slot + run.n)
		return false;
	set_used(space, run, true);
	return true;
}
