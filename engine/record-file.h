/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_RECORD_FILE_H
#define ENGINE_RECORD_FILE_H

/* The bytes of a record log: its lines, reading a whole file, replacing it. See record-log.h. */

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* Appends RECORD to TEXT as a line with its checksum. */
void kvc_record_line_append(GString *text, const char *record);

typedef struct KvcRecordFileReader {
	const char *path;
	const char *format;			/* what the first line must be */
	bool (*load)(void *user, char *record); /* false: it makes no sense */
	void *user;
	uint64_t n_corrupt; /* out: records before the end that were left out */
} KvcRecordFileReader;

/*
 * Calls load for each record of the file; no file, or an empty one, has none. false with ERROR set:
 * it cannot be read, or is not of this format.
 */
bool kvc_record_file_read(KvcRecordFileReader *reader, GError **error);

/* Writes LEN bytes at the file's end: 0, or -errno and the file is as before or torn at its end. */
int kvc_record_file_write(int fd, const char *data, size_t len);

/*
 * Replaces PATH by a file with TEXT, in one step that a crash cannot divide: writes and syncs
 * PATH.new, renames it, syncs the directory. Returns its descriptor, for appending (owned by the
 * caller), or -errno. *IS_RENAMED: the new file is under PATH, even if the end of this failed.
 */
int kvc_record_file_replace(const char *path, const GString *text, bool *is_renamed);

#endif
