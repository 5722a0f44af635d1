/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A line is the CRC32C of the record in 8 hex digits, a blank, the record. The first line is the
 * format, as it is. Lines that are not right at the end of the file are what a crash left of the
 * last write; the same before the end is damage.
 */

#include "engine/record-file.h"

#include "kvcache/crc.h"
#include "kvcache/options.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CRC_DIGITS 8
/* All of it is read into memory. A record takes about 200 bytes. */
#define MAX_BYTES (INT64_C(1) << 30)

void
kvc_record_line_append(GString *text, const char *record)
{
	uint32_t crc = kvc_crc32c(0, record, strlen(record));
	g_string_append_printf(text, "%0*x ", CRC_DIGITS, crc);
	g_string_append(text, record);
	g_string_append_c(text, '\n');
}

/* The record of a LINE of LEN bytes without its newline, or NULL. */
static char *
check_line(char *line, size_t len)
{
	char expected[CRC_DIGITS + 2];
	if (len <= CRC_DIGITS + 1 || memchr(line, '\0', len))
		return NULL;
	char *record = line + CRC_DIGITS + 1;
	uint32_t crc = kvc_crc32c(0, record, len - CRC_DIGITS - 1);
	snprintf(expected, sizeof(expected), "%0*x ", CRC_DIGITS, crc);
	return memcmp(line, expected, CRC_DIGITS + 1) == 0 ? record : NULL;
}

static void
report_corrupt(KvcRecordFileReader *reader, const GArray *numbers)
{
	for (guint i = 0; i < numbers->len; i++)
		g_warning("%s: line %u is damaged and left out", reader->path,
			  g_array_index(numbers, unsigned, i));
	reader->n_corrupt += numbers->len;
}

/* TEXT: what follows the first line. */
static void
read_lines(KvcRecordFileReader *reader, char *text, size_t len)
{
	g_autoptr(GArray) bad = g_array_new(FALSE, FALSE, sizeof(unsigned));
	char *end = text + len, *torn = NULL;
	unsigned number = 1;
	for (char *line = text; line < end;) {
		char *newline = memchr(line, '\n', (size_t)(end - line));
		size_t n = (size_t)((newline ? newline : end) - line);
		char *record = newline ? check_line(line, n) : NULL;
		number++;
		if (newline)
			*newline = '\0';
		if (record && reader->load(reader->user, record)) {
			report_corrupt(reader, bad);
			g_array_set_size(bad, 0);
			torn = NULL;
		} else {
			g_array_append_val(bad, number);
			torn = torn ? torn : line;
		}
		line = newline ? newline + 1 : end;
	}
	if (torn)
		g_message("%s: the last %zu bytes are torn and dropped", reader->path,
			  (size_t)(end - torn));
}

bool
kvc_record_file_read(KvcRecordFileReader *reader, GError **error)
{
	g_autofree char *text = NULL;
	g_autoptr(GError) failure = NULL;
	size_t len = 0, format_len = strlen(reader->format);
	struct stat st;
	/* A fifo would keep the start. */
	if (stat(reader->path, &st) == 0 && !S_ISREG(st.st_mode)) {
		g_set_error(error, KVC_OPTIONS_ERROR, EPROTO, "%s is not a regular file",
			    reader->path);
		return false;
	}
	if (stat(reader->path, &st) == 0 && st.st_size > MAX_BYTES) {
		g_set_error(error, KVC_OPTIONS_ERROR, EFBIG,
			    "%s has %lld bytes, more than the %lld of what is ours; it is left as "
			    "it is, move it away to start without it",
			    reader->path, (long long)st.st_size, (long long)MAX_BYTES);
		return false;
	}
	if (!g_file_get_contents(reader->path, &text, &len, &failure)) {
		if (g_error_matches(failure, G_FILE_ERROR, G_FILE_ERROR_NOENT))
			return true;
		g_propagate_error(error, g_steal_pointer(&failure));
		return false;
	}
	if (len == 0)
		return true;
	if (len <= format_len || memcmp(text, reader->format, format_len) != 0 ||
	    text[format_len] != '\n') {
		g_set_error(error, KVC_OPTIONS_ERROR, EPROTO,
			    "%s is not a file of the format \"%s\"; it is left as it is, move it "
			    "away to start without it",
			    reader->path, reader->format);
		return false;
	}
	read_lines(reader, text + format_len + 1, len - format_len - 1);
	return true;
}

int
kvc_record_file_write(int fd, const char *data, size_t len)
{
	while (len > 0) {
		ssize_t n = write(fd, data, len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		data += n;
		len -= (size_t)n;
	}
	return 0;
}

static int
sync_directory_of(const char *path)
{
	g_autofree char *directory = g_path_get_dirname(path);
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc = fd < 0 || fsync(fd) != 0 ? -errno : 0;
	if (fd >= 0)
		close(fd);
	return rc;
}

static int
write_new(int fd, const char *path, const char *new_path, const GString *text, bool *is_renamed)
{
	int rc = kvc_record_file_write(fd, text->str, text->len);
	if (rc < 0)
		return rc;
	if (fdatasync(fd) != 0 || rename(new_path, path) != 0)
		return -errno;
	*is_renamed = true;
	return sync_directory_of(path);
}

int
kvc_record_file_replace(const char *path, const GString *text, bool *is_renamed)
{
	g_autofree char *new_path = g_strconcat(path, ".new", NULL);
	*is_renamed = false;
	if (unlink(new_path) != 0 && errno != ENOENT)
		return -errno;
	int fd = open(new_path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	int rc = write_new(fd, path, new_path, text, is_renamed);
	if (rc == 0)
		return fd;
	close(fd);
	if (!*is_renamed)
		unlink(new_path);
	return rc;
}
