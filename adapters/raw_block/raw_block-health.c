/* SPDX-License-Identifier: Apache-2.0 */

/* What the adapter tells about itself: errors, logs, usage, status. */

#define G_LOG_DOMAIN "kvcache"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "raw_block.h"

#define SEC_NS INT64_C(1000000000)
/* Health stays "degraded" for so long after the last failure. */
#define DEGRADED_NS (60 * SEC_NS)
/* At most one line of warning in this time. */
#define WARN_NS SEC_NS
/* So many failures without a success between them: nothing works. */
#define FAILED_IN_A_ROW 8

int64_t
raw_block_now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return ts.tv_sec * SEC_NS + ts.tv_nsec;
}

/* How many warnings were left out before this one, or -1: leave this one out too. */
static int
take_warning_locked(RawBlock *rb)
{
	int64_t now = raw_block_now_ns(CLOCK_MONOTONIC);
	int suppressed = (int)rb->warnings_suppressed;

	if (rb->warned_ns && now - rb->warned_ns < WARN_NS) {
		rb->warnings_suppressed++;
		return -1;
	}
	rb->warned_ns = now;
	rb->warnings_suppressed = 0;
	return suppressed;
}

void
raw_block_warn(RawBlock *rb, const char *format, ...)
{
	va_list arguments;

	pthread_mutex_lock(&rb->health_lock);
	int suppressed = take_warning_locked(rb);
	pthread_mutex_unlock(&rb->health_lock);
	if (suppressed < 0)
		return;
	va_start(arguments, format);
	g_autofree char *text = g_strdup_vprintf(format, arguments);
	va_end(arguments);
	g_warning("raw_block %s: %s (%d more not shown)", rb->path, text, suppressed);
}

void
raw_block_note_error(
	RawBlock *rb, RawBlockKind kind, const char *what, const KvcObjectKey *key, int errnum)
{
	static const char *const names[RAW_BLOCK_KINDS] = {"store", "lookup", "load"};
	_Atomic uint64_t *const counters[RAW_BLOCK_KINDS] = {
		&rb->stats.store_errors, &rb->stats.lookup_errors, &rb->stats.load_errors};
	g_autofree char *name = key ? kvc_object_key_to_string(key) : NULL;
	g_autofree char *text = g_strdup_printf(
		"%s failed: cannot %s%s%s%s: %s (errno %d)", names[kind], what, name ? " \"" : "",
		name ? name : "", name ? "\"" : "", g_strerror(errnum), errnum);

	atomic_fetch_add(counters[kind], 1);
	pthread_mutex_lock(&rb->health_lock);
	rb->last_error_ns = raw_block_now_ns(CLOCK_MONOTONIC);
	rb->failing[kind]++;
	if (errnum != ENOSPC && errnum != ENAMETOOLONG) /* what is there can be read */
		rb->failed_in_a_row++;
	g_free(rb->last_error);
	rb->last_error = g_strdup(text);
	pthread_mutex_unlock(&rb->health_lock);
	raw_block_warn(rb, "%s", text);
}

/* A lookup asks no device, so that it proves nothing about that. */
void
raw_block_note_success(RawBlock *rb, RawBlockKind kind)
{
	pthread_mutex_lock(&rb->health_lock);
	rb->failing[kind] = 0;
	if (kind != RAW_BLOCK_LOOKUP)
		rb->failed_in_a_row = 0;
	pthread_mutex_unlock(&rb->health_lock);
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

static const char *
health_locked(const RawBlock *rb)
{
	bool is_failing = rb->last_error &&
			  raw_block_now_ns(CLOCK_MONOTONIC) - rb->last_error_ns < DEGRADED_NS;

	if (rb->failed_in_a_row >= FAILED_IN_A_ROW)
		return "failed";
	for (size_t i = 0; i < RAW_BLOCK_KINDS; i++)
		is_failing = is_failing || rb->failing[i] > 0;
	return is_failing ? "degraded" : "ok";
}

static void
describe_number(KvcDescribeFunc func, void *user, const char *name, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, value);
	func(user, name, text);
}

static void
describe_index(RawBlock *rb, KvcDescribeFunc func, void *user)
{
	pthread_mutex_lock(&rb->lock);
	bool is_ready = rb->is_ready;
	uint64_t n_free = rb->space.n_free, zombies = rb->zombies->len;
	pthread_mutex_unlock(&rb->lock);
	func(user, "index", is_ready ? "complete" : "loading");
	describe_number(func, user, "slot_bytes", rb->super.slot_bytes);
	describe_number(func, user, "slots", rb->super.n_slots);
	describe_number(func, user, "slots_free", n_free);
	describe_number(func, user, "not_removed", zombies);
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
		{"store_errors", &stats->store_errors},
		{"lookup_errors", &stats->lookup_errors},
		{"load_errors", &stats->load_errors},
		{"load_misses", &stats->load_misses},
		{"crc_mismatches", &stats->crc_mismatches},
		{"damaged_headers", &stats->damaged_headers},
		{"unsupported_keys", &stats->unsupported_keys},
		{"attribute_errors", &stats->attribute_errors},
		{"checkpoints", &stats->checkpoints},
		{"checkpoint_errors", &stats->checkpoint_errors},
	};

	for (size_t i = 0; i < G_N_ELEMENTS(lines); i++)
		describe_number(func, user, lines[i].name, atomic_load(lines[i].value));
}

void
raw_block_describe(RawBlock *rb, KvcDescribeFunc func, void *user)
{
	pthread_mutex_lock(&rb->health_lock);
	const char *health = health_locked(rb);
	g_autofree char *last_error = g_strdup(rb->last_error);
	pthread_mutex_unlock(&rb->health_lock);

	func(user, "health", health);
	func(user, "io_mode", rb->is_direct ? "direct" : "buffered");
	func(user, "location", rb->path);
	func(user, "checksums", rb->verify ? "crc32c" : "off");
	if (last_error)
		func(user, "last_error", last_error);
	describe_index(rb, func, user);
	describe_stats(rb, func, user);
}
