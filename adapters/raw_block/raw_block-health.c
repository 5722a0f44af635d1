/* SPDX-License-Identifier: Apache-2.0 */

/* What the adapter tells about itself: errors, logs, usage, status. */

#include "raw_block.h"

void
raw_block_note_error(
	RawBlock *rb, KvcTaskKind kind, const char *what, const KvcObjectKey *key, int errnum)
{
	g_autofree char *name = key ? kvc_object_key_to_string(key) : NULL;

	kvc_failures_note(rb->failures, kind, what, name, errnum);
}

/* The capacity is what the objects use plus what is free: the rest of their slots is neither. */
void
raw_block_usage(RawBlock *rb, KvcL2Usage *usage)
{
	pthread_mutex_lock(&rb->lock);
	usage->bytes_used = rb->bytes_used;
	usage->objects = rb->objects;
	usage->capacity_bytes = rb->bytes_used + rb->space.n_free * rb->super.slot_bytes;
	pthread_mutex_unlock(&rb->lock);
}

static void
describe_index(RawBlock *rb, KvcDescribeFunc func, void *user)
{
	pthread_mutex_lock(&rb->lock);
	bool is_ready = rb->is_ready;
	uint64_t n_free = rb->space.n_free, zombies = rb->zombies->len;
	pthread_mutex_unlock(&rb->lock);
	func(user, "index", is_ready ? "complete" : "loading");
	kvc_describe_count(func, user, "slot_bytes", rb->super.slot_bytes);
	kvc_describe_count(func, user, "slots", rb->super.n_slots);
	kvc_describe_count(func, user, "slots_free", n_free);
	kvc_describe_count(func, user, "not_removed", zombies);
}

static void
describe_stats(RawBlock *rb, KvcDescribeFunc func, void *user)
{
	RawBlockStats *stats = &rb->stats;
	const struct {
		const char *name;
		_Atomic uint64_t *value;
	} lines[] = {
		{"stores", &stats->stores},
		{"loads", &stats->loads},
		{"skipped", &stats->skipped},
		{"renames", &stats->renames},
		{"load_misses", &stats->load_misses},
		{"crc_mismatches", &stats->crc_mismatches},
		{"damaged_headers", &stats->damaged_headers},
		{"unsupported_keys", &stats->unsupported_keys},
		{"attribute_errors", &stats->attribute_errors},
		{"checkpoints", &stats->checkpoints},
		{"checkpoint_errors", &stats->checkpoint_errors},
	};

	for (size_t i = 0; i < G_N_ELEMENTS(lines); i++)
		kvc_describe_count(func, user, lines[i].name, atomic_load(lines[i].value));
}

void
raw_block_describe(RawBlock *rb, KvcDescribeFunc func, void *user)
{
	kvc_failures_describe(rb->failures, false, func, user);
	func(user, "io_mode", rb->is_direct ? "direct" : "buffered");
	func(user, "location", rb->path);
	func(user, "checksums", rb->verify ? "crc32c" : "off");
	describe_index(rb, func, user);
	describe_stats(rb, func, user);
}
