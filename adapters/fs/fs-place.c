/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Is base_path still the directory that was opened? When it was moved away or removed, or when
 * something was mounted over it, all goes well below the open descriptor, and nothing of it is
 * where everybody looks for it, this daemon's next start as well. So nothing is stored, loaded,
 * renamed or deleted meanwhile, and the breaker is open. What is in its place is never taken over:
 * the engine knows what was in the old one.
 */

#define G_LOG_DOMAIN "kvcache"

#include <errno.h>

#include "fs.h"

#define LOOK_SEC 1

typedef enum {
	PLACE_SAME,
	PLACE_LOST,
	PLACE_UNKNOWN, /* for now: it may not be asked, or its server does not answer */
} Place;

static Place
compare(const FsAdapter *fs)
{
	struct stat open_one, named;

	if (fstat(fs->base_fd, &open_one) < 0)
		return PLACE_UNKNOWN;
	if (stat(fs->base_path, &named) < 0)
		return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? PLACE_LOST
									     : PLACE_UNKNOWN;
	return named.st_dev == open_one.st_dev && named.st_ino == open_one.st_ino ? PLACE_SAME
										  : PLACE_LOST;
}

static void
note_lost(FsAdapter *fs)
{
	g_autofree char *text = g_strdup_printf(
		"\"%s\" is not the directory that was opened: moved, removed, or something is "
		"mounted over it",
		fs->base_path);

	kvc_failures_remember(fs->failures, text);
}

void
fs_place_look(FsAdapter *fs)
{
	Place place = compare(fs);
	bool is_lost = place == PLACE_LOST;

	if (place == PLACE_UNKNOWN)
		return;
	pthread_mutex_lock(&fs->lock);
	bool has_changed = atomic_exchange(&fs->is_lost, is_lost) != is_lost;
	if (has_changed && is_lost)
		note_lost(fs);
	pthread_mutex_unlock(&fs->lock);
	if (has_changed && is_lost)
		g_warning("fs %s: this is not the directory any more that was opened: it was moved "
			  "or removed, or something is mounted over it; nothing is stored or "
			  "loaded until it is back here (what is here instead is used after a "
			  "restart only)",
			  fs->base_path);
	else if (has_changed)
		g_message("fs %s: the directory is back", fs->base_path);
}

bool
fs_sleep(FsAdapter *fs, int64_t seconds)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += seconds;
	pthread_mutex_lock(&fs->lock);
	while (!atomic_load(&fs->closing) &&
	       pthread_cond_timedwait(&fs->closed, &fs->lock, &until) == 0)
		;
	bool goes_on = !atomic_load(&fs->closing);
	pthread_mutex_unlock(&fs->lock);
	return goes_on;
}

void *
fs_place_main(void *user)
{
	FsAdapter *fs = user;

	while (fs_sleep(fs, LOOK_SEC))
		fs_place_look(fs);
	return NULL;
}

bool
fs_place_is_lost(FsAdapter *fs, KvcTaskKind kind)
{
	if (!atomic_load(&fs->is_lost))
		return false;
	kvc_failures_count(fs->failures, kind);
	/* It is certain: the engine need not try five times. */
	for (int i = 0; i < KVC_BREAKER_FAILURES; i++)
		kvc_breaker_note(fs->base.l2.breaker, -FS_LOST);
	return true;
}
