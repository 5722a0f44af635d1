/* SPDX-License-Identifier: Apache-2.0 */

#include "config.h"

#include "kvcache/crc.h"

#ifdef HAVE_ISAL

#include <isa-l/crc.h>

/* ISA-L takes a signed length and leaves both inversions of RFC 3720 to its caller. */
uint32_t
kvc_crc32c(uint32_t crc, const void *data, size_t len)
{
	const size_t max_piece = 1 << 30;
	unsigned char *p = (unsigned char *)data; /* only read: its prototype lacks the const */
	uint32_t state = ~crc;

	while (len > 0) {
		size_t piece = MIN(len, max_piece);

		state = crc32_iscsi(p, (int)piece, state);
		p += piece;
		len -= piece;
	}
	return ~state;
}

const char *
kvc_crc32c_implementation(void)
{
	return "isa-l";
}

#else

#include <pthread.h>
#include <string.h>

#define REVERSED_POLYNOMIAL UINT32_C(0x82f63b78)

/* tables[k][b]: the effect of byte b, k bytes before the end ("slicing by 8"). */
static uint32_t tables[8][256];

static void
init_tables(void)
{
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t crc = b;

		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? REVERSED_POLYNOMIAL : 0);
		tables[0][b] = crc;
	}
	for (int k = 1; k < 8; k++)
		for (int b = 0; b < 256; b++)
			tables[k][b] = tables[k - 1][b] >> 8 ^ tables[0][tables[k - 1][b] & 0xff];
}

static uint32_t
add_eight_bytes(uint32_t state, const uint8_t *p)
{
	uint64_t word;

	memcpy(&word, p, sizeof(word));
	word = GUINT64_FROM_LE(word) ^ state;
	state = 0;
	for (int k = 0; k < 8; k++)
		state ^= tables[7 - k][word >> (8 * k) & 0xff];
	return state;
}

uint32_t
kvc_crc32c(uint32_t crc, const void *data, size_t len)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const uint8_t *p = data;
	uint32_t state = ~crc;

	pthread_once(&once, init_tables);
	for (; len >= 8; len -= 8, p += 8)
		state = add_eight_bytes(state, p);
	for (; len > 0; len--, p++)
		state = state >> 8 ^ tables[0][(state ^ *p) & 0xff];
	return ~state;
}

const char *
kvc_crc32c_implementation(void)
{
	return "table";
}

#endif
