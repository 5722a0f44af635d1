/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CLIENTS_PATTERN_H
#define TESTS_CLIENTS_PATTERN_H

/* Data that looks random and is the same for the same seed: splitmix64, eight bytes a step. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t
pattern_next(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Fills BYTES of DATA and moves STATE on (it starts as the seed). */
static inline void
pattern_fill(uint64_t *state, void *data, size_t bytes)
{
	char *out = data;

	while (bytes > 0) {
		uint64_t word = pattern_next(state);
		size_t n = bytes < sizeof(word) ? bytes : sizeof(word);

		memcpy(out, &word, n);
		out += n;
		bytes -= n;
	}
}

#endif
