/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One mechanism mends everything: writing the whole state to a new file. It compacts, it drops a
 * torn end at the start, and it is what a failing log tries once a second.
 *
 * Positions say what is where. While the log works, all up to WRITTEN is in the file and the rest
 * is in the buffer. A failure drops the buffer: then what lies behind KEPT is not in the file and
 * will not be, until a new file, which has the state of the moment, succeeds.
 *
 * One thread writes, a second one syncs: a disk that takes its time over a sync does not keep what
 * is appended meanwhile out of the file, where a SIGKILL cannot take it away.
 */

#include "kvcache/record-log.h"

#include "engine/lock.h"
#include "engine/record-file.h"
#include "kvcache/options.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define SYNC_NS KVC_SEC_NS
#define RETRY_NS KVC_SEC_NS
#define SETTLE_NS KVC_SEC_NS
/* A file with fewer records is not worth a compaction. */
#define COMPACT_MIN_RECORDS 4096

typedef struct Waiter {
	struct Waiter *next;
	uint64_t position;
	void (*done)(void *user, int error);
	void *user;
} Waiter;

struct KvcRecordLog {
	/* Immutable after open. */
	KvcRecordLogConfig config;
	char *path;
	pthread_t writer, syncer;
	bool is_open; /* failures are not errors of the open any more */
	bool is_running;

	KvcMutex lock;
	pthread_cond_t wake, sync_wake; /* for the writer, for the syncer */
	pthread_cond_t moved;		/* WRITTEN moved or the log failed */
	/* Protected by lock. */
	GString *buffer; /* lines that are not written */
	uint64_t appended, written, synced, kept;
	uint64_t sync_wanted; /* at once up to here */
	int64_t sync_due_ns;  /* what is written is synced by then; 0: all of it is */
	unsigned n_files;     /* how often a new file succeeded */
	uint64_t stalled;     /* what was written when a wait was in vain; UINT64_MAX: never */
	Waiter *waiters;
	int error;	 /* 0, or the -errno for which it is failing */
	int sync_error;	 /* 0, or the -errno of a sync that the writer does not know of */
	bool has_synced; /* and the writer has not told it */
	bool is_rewriting;
	bool is_stopping, is_written_out; /* the writer is to end; it has ended */
	int fd;				  /* changed by the writer only; -1: there is no file */

	/* Owned by the writer. */
	off_t file_bytes;
	size_t n_records;
	int64_t retry_ns; /* when a failing log is tried again; 0: it works */

	/* Atomic. */
	uint64_t errors, corrupt;
};

/* What the writer is about to do. */
typedef struct Work {
	GString *text; /* owned */
	uint64_t position;
	size_t n_live;
	int sync_error;
	bool report, rewrite, is_last;
} Work;

/* ---- Failing ------------------------------------------------------------------------------- */

static bool
is_discarding_locked(const KvcRecordLog *log)
{
	return log->error != 0 && !log->is_rewriting;
}

/* The waiters up to the position that is synced, or all of them after a failure. */
static Waiter *
take_waiters_locked(KvcRecordLog *log)
{
	Waiter *taken = NULL, **link = &log->waiters;
	while (*link) {
		Waiter *w = *link;
		if (log->error == 0 && w->position > log->synced) {
			link = &w->next;
			continue;
		}
		*link = w->next;
		w->next = taken;
		taken = w;
	}
	return taken;
}

static void
answer(Waiter *waiters, int error)
{
	while (waiters) {
		Waiter *w = waiters;
		waiters = w->next;
		w->done(w->user, error);
		g_free(w);
	}
}

/* Tells everybody how far it is. */
static void
report(KvcRecordLog *log)
{
	kvc_mutex_lock(&log->lock);
	uint64_t synced = log->synced;
	int error = log->error;
	Waiter *waiters = take_waiters_locked(log);
	pthread_cond_broadcast(&log->moved);
	kvc_mutex_unlock(&log->lock);
	answer(waiters, error);
	if (log->config.progress)
		log->config.progress(log->config.user, synced, error);
}

/* KEPT: up to where the file may have the records. */
static void
fail(KvcRecordLog *log, int error, uint64_t kept)
{
	__atomic_fetch_add(&log->errors, 1, __ATOMIC_RELAXED);
	kvc_mutex_lock(&log->lock);
	bool is_news = log->is_open && log->error != error;
	log->kept = log->error == 0 ? kept : MAX(log->kept, kept);
	log->error = error;
	log->sync_error = 0;
	log->is_rewriting = false;
	g_string_truncate(log->buffer, 0);
	kvc_mutex_unlock(&log->lock);
	if (is_news)
		g_warning("%s cannot be written: %s; it is tried again", log->path,
			  g_strerror(-error));
	log->retry_ns = kvc_now_ns() + RETRY_NS;
	report(log);
}

/* ---- A new file ---------------------------------------------------------------------------- */

/* The state as the text of a file, and the position it stands for. */
static GString *
take_snapshot(KvcRecordLog *log, uint64_t *position)
{
	kvc_mutex_lock(&log->lock);
	log->is_rewriting = true;
	g_string_truncate(log->buffer, 0);
	*position = log->appended;
	g_autoptr(GPtrArray) items = log->config.snapshot(log->config.user);
	kvc_mutex_unlock(&log->lock);
	GString *text = g_string_new(log->config.format);
	g_autoptr(GString) record = g_string_new(NULL);
	g_string_append_c(text, '\n');
	for (guint i = 0; i < items->len; i++) {
		g_string_truncate(record, 0);
		log->config.format_item(log->config.user, items->pdata[i], record);
		kvc_record_line_append(text, record->str);
	}
	log->n_records = items->len;
	return text;
}

/* Everything is in the file and synced. */
static void
succeed(KvcRecordLog *log, uint64_t position)
{
	kvc_mutex_lock(&log->lock);
	bool was_failing = log->error != 0;
	log->error = log->sync_error = 0;
	log->n_files++;
	log->sync_due_ns = 0;
	log->is_rewriting = false;
	log->written = log->synced = position;
	kvc_mutex_unlock(&log->lock);
	if (was_failing)
		g_message("%s can be written again", log->path);
	log->retry_ns = 0;
	report(log);
}

static void
set_file(KvcRecordLog *log, int fd)
{
	kvc_mutex_lock(&log->lock);
	int old = log->fd;
	log->fd = fd;
	kvc_mutex_unlock(&log->lock);
	if (old >= 0)
		close(old);
}

static void
rewrite(KvcRecordLog *log)
{
	uint64_t position;
	bool is_renamed;
	g_autoptr(GString) text = NULL;
	text = take_snapshot(log, &position);
	int fd = kvc_record_file_replace(log->path, text, &is_renamed);
	/* The old file has what was written to it until then. */
	uint64_t kept = is_renamed ? position : log->written;
	if (fd >= 0 || is_renamed)
		set_file(log, MAX(fd, -1));
	if (fd < 0) {
		fail(log, fd, kept);
		return;
	}
	log->file_bytes = (off_t)text->len;
	succeed(log, position);
}

/* ---- Appending ----------------------------------------------------------------------------- */

static void
write_out(KvcRecordLog *log, const Work *work)
{
	int rc = kvc_record_file_write(log->fd, work->text->str, work->text->len);
	if (rc < 0) {
		/* Nothing of it may stay, or nobody knows how much did. */
		bool is_cut = ftruncate(log->fd, log->file_bytes) == 0;
		fail(log, rc, is_cut ? log->written : work->position);
		return;
	}
	log->file_bytes += (off_t)work->text->len;
	kvc_mutex_lock(&log->lock);
	log->n_records += work->position - log->written;
	log->written = work->position;
	if (log->sync_due_ns == 0)
		log->sync_due_ns = kvc_now_ns() + SYNC_NS;
	pthread_cond_signal(&log->sync_wake);
	pthread_cond_broadcast(&log->moved);
	kvc_mutex_unlock(&log->lock);
}

/* ---- The writer ---------------------------------------------------------------------------- */

static bool
has_work_locked(const KvcRecordLog *log)
{
	if (log->is_stopping || log->sync_error || log->has_synced)
		return true;
	return log->error == 0 ? log->buffer->len > 0 : kvc_now_ns() >= log->retry_ns;
}

static Work
take_work(KvcRecordLog *log)
{
	kvc_mutex_lock(&log->lock);
	while (!has_work_locked(log))
		kvc_cond_wait_until(&log->wake, &log->lock, log->retry_ns);
	Work work = {
		.text = log->buffer,
		.position = log->appended,
		.n_live = log->config.count_live(log->config.user),
		.sync_error = log->sync_error,
		.report = log->has_synced,
		.rewrite = log->error != 0,
		.is_last = log->is_stopping,
	};
	log->buffer = g_string_new(NULL);
	log->has_synced = false;
	kvc_mutex_unlock(&log->lock);
	return work;
}

static void
do_work(KvcRecordLog *log, const Work *work)
{
	size_t n = log->n_records;
	if (work->rewrite || (n > COMPACT_MIN_RECORDS && work->n_live < n / 2))
		rewrite(log);
	else if (work->sync_error)
		fail(log, work->sync_error, log->written);
	else if (work->text->len > 0)
		write_out(log, work);
	if (work->report)
		report(log);
}

/* A limit on the size of files is an error as any other. */
static void
begin_thread(const char *name)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGXFSZ);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	pthread_setname_np(pthread_self(), name);
}

static void *
writer_thread(void *data)
{
	KvcRecordLog *log = data;
	bool is_last = false;
	begin_thread(log->config.thread_name);
	while (!is_last) {
		Work work = take_work(log);
		is_last = work.is_last;
		do_work(log, &work);
		g_string_free(work.text, TRUE);
	}
	return NULL;
}

/* ---- The syncer ---------------------------------------------------------------------------- */

static bool
is_sync_due_locked(const KvcRecordLog *log)
{
	if (log->error || log->sync_error || log->synced >= log->written)
		return false;
	return log->is_stopping || log->sync_wanted > log->synced ||
	       kvc_now_ns() >= log->sync_due_ns;
}

/* The writer may put another file in its place meanwhile, which has all that this one had. */
static void
sync_file_locked(KvcRecordLog *log)
{
	uint64_t position = log->written;
	unsigned n_files = log->n_files;
	int fd = fcntl(log->fd, F_DUPFD_CLOEXEC, 0);
	int error = fd < 0 ? -errno : 0;
	log->sync_due_ns = 0;
	kvc_mutex_unlock(&log->lock);
	if (fd >= 0 && fdatasync(fd) != 0)
		error = -errno;
	if (fd >= 0)
		close(fd);
	kvc_mutex_lock(&log->lock);
	if (error == 0) {
		log->synced = MAX(log->synced, position);
		log->has_synced = true;
	} else if (n_files == log->n_files) {
		log->sync_error = error; /* the writer fails with it, and tells that */
	}
	pthread_cond_signal(&log->wake);
}

static int64_t
sync_deadline_locked(const KvcRecordLog *log)
{
	return log->error || log->sync_error ? 0 : log->sync_due_ns;
}

static void *
syncer_thread(void *data)
{
	KvcRecordLog *log = data;
	begin_thread("kvc-logsync");
	kvc_mutex_lock(&log->lock);
	for (;;) {
		if (is_sync_due_locked(log))
			sync_file_locked(log);
		else if (log->is_written_out)
			break;
		else
			kvc_cond_wait_until(&log->sync_wake, &log->lock, sync_deadline_locked(log));
	}
	kvc_mutex_unlock(&log->lock);
	return NULL;
}

/* ---- Lifetime ------------------------------------------------------------------------------ */

static bool
is_full(int error)
{
	return error == -ENOSPC || error == -EDQUOT || error == -EFBIG;
}

static bool
load(KvcRecordLog *log, GError **error)
{
	KvcRecordFileReader reader = {
		.path = log->path,
		.format = log->config.format,
		.load = log->config.load,
		.user = log->config.user,
	};
	if (!kvc_record_file_read(&reader, error))
		return false;
	log->corrupt = reader.n_corrupt;
	rewrite(log);
	if (is_full(log->error))
		g_warning("%s cannot be written: %s; it is tried again", log->path,
			  g_strerror(-log->error));
	if (log->error == 0 || is_full(log->error))
		return true;
	g_set_error(error, KVC_OPTIONS_ERROR, -log->error, "%s cannot be written: %s", log->path,
		    g_strerror(-log->error));
	return false;
}

KvcRecordLog *
kvc_record_log_open(const KvcRecordLogConfig *config, GError **error)
{
	KvcRecordLog *log = g_new0(KvcRecordLog, 1);
	log->config = *config;
	log->config.progress = NULL; /* not before the start */
	log->path = g_strdup(config->path);
	log->fd = -1;
	log->stalled = UINT64_MAX;
	log->buffer = g_string_new(NULL);
	kvc_mutex_init(&log->lock, KVC_LOCK_LEAF);
	kvc_cond_init(&log->wake);
	kvc_cond_init(&log->sync_wake);
	kvc_cond_init(&log->moved);
	if (!load(log, error)) {
		kvc_record_log_free(log);
		return NULL;
	}
	log->config.progress = config->progress;
	log->is_open = true;
	return log;
}

void
kvc_record_log_start(KvcRecordLog *log)
{
	log->is_running = pthread_create(&log->writer, NULL, writer_thread, log) == 0 &&
			  pthread_create(&log->syncer, NULL, syncer_thread, log) == 0;
	g_assert(log->is_running);
}

/* First the one that writes what is left, then the one that syncs it. */
static void
end_threads(KvcRecordLog *log)
{
	kvc_mutex_lock(&log->lock);
	log->is_stopping = true;
	pthread_cond_signal(&log->wake);
	kvc_mutex_unlock(&log->lock);
	pthread_join(log->writer, NULL);
	kvc_mutex_lock(&log->lock);
	log->is_written_out = true;
	pthread_cond_signal(&log->sync_wake);
	kvc_mutex_unlock(&log->lock);
	pthread_join(log->syncer, NULL);
	report(log);
}

void
kvc_record_log_free(KvcRecordLog *log)
{
	if (!log)
		return;
	if (log->is_running)
		end_threads(log);
	answer(g_steal_pointer(&log->waiters), -ESHUTDOWN);
	if (log->fd >= 0)
		close(log->fd);
	g_string_free(log->buffer, TRUE);
	pthread_cond_destroy(&log->wake);
	pthread_cond_destroy(&log->sync_wake);
	pthread_cond_destroy(&log->moved);
	kvc_mutex_deinit(&log->lock);
	g_free(log->path);
	g_free(log);
}

/* ---- Its user ------------------------------------------------------------------------------ */

void
kvc_record_log_lock(KvcRecordLog *log)
{
	kvc_mutex_lock(&log->lock);
}

void
kvc_record_log_unlock(KvcRecordLog *log)
{
	kvc_mutex_unlock(&log->lock);
}

uint64_t
kvc_record_log_append(KvcRecordLog *log, const char *record)
{
	if (!is_discarding_locked(log)) {
		kvc_record_line_append(log->buffer, record);
		pthread_cond_signal(&log->wake);
	}
	return ++log->appended;
}

bool
kvc_record_log_is_kept(KvcRecordLog *log, uint64_t position)
{
	return !is_discarding_locked(log) || position <= log->kept;
}

void
kvc_record_log_settle(KvcRecordLog *log)
{
	int64_t deadline = kvc_now_ns() + SETTLE_NS;
	int rc = 0;
	kvc_mutex_lock(&log->lock);
	uint64_t position = log->appended;
	while (rc == 0 && log->error == 0 && log->written < position &&
	       log->stalled != log->written)
		rc = kvc_cond_wait_until(&log->moved, &log->lock, deadline);
	if (rc != 0)
		log->stalled = log->written;
	kvc_mutex_unlock(&log->lock);
}

static void
want_sync_locked(KvcRecordLog *log)
{
	log->sync_wanted = log->appended;
	pthread_cond_signal(&log->sync_wake);
}

void
kvc_record_log_request_sync(KvcRecordLog *log)
{
	kvc_mutex_lock(&log->lock);
	want_sync_locked(log);
	kvc_mutex_unlock(&log->lock);
}

void
kvc_record_log_sync(KvcRecordLog *log, void (*done)(void *user, int error), void *user)
{
	kvc_mutex_lock(&log->lock);
	int error = log->error;
	bool is_known = error != 0 || log->synced == log->appended;
	if (!is_known) {
		Waiter *w = g_new(Waiter, 1);
		*w = (Waiter){log->waiters, log->appended, done, user};
		log->waiters = w;
		want_sync_locked(log);
	}
	kvc_mutex_unlock(&log->lock);
	if (is_known)
		done(user, error);
}

void
kvc_record_log_get_status(KvcRecordLog *log, KvcRecordLogStatus *status)
{
	kvc_mutex_lock(&log->lock);
	status->error = log->error;
	kvc_mutex_unlock(&log->lock);
	status->errors = __atomic_load_n(&log->errors, __ATOMIC_RELAXED);
	status->corrupt = log->corrupt;
}

/* ---- Fields -------------------------------------------------------------------------------- */

char *
kvc_record_field_escape(const char *text)
{
	if (text[0] == '\0')
		return g_strdup("%");
	return g_uri_escape_string(text, "!\"#$&'()*+,/:;<=>?@[\\]^`{|}", FALSE);
}

char *
kvc_record_field_unescape(const char *field)
{
	if (strcmp(field, "%") == 0)
		return g_strdup("");
	return field[0] == '\0' ? NULL : g_uri_unescape_string(field, NULL);
}
