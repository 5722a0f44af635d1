/* SPDX-License-Identifier: Apache-2.0 */

/* Bits beyond the size are always clear: counting and comparing whole words needs no special case.
 */

#include "kvcache/bitmap.h"

#include <stdint.h>
#include <string.h>

#define WORD_BITS 64

struct KvcBitmap {
	size_t size; /* bits */
	size_t n_words;
	uint64_t words[];
};

static size_t
bitmap_bytes(size_t n_words)
{
	return sizeof(KvcBitmap) + n_words * sizeof(uint64_t);
}

KvcBitmap *
kvc_bitmap_new(size_t n)
{
	size_t n_words = n / WORD_BITS + (n % WORD_BITS != 0);
	KvcBitmap *bitmap = g_malloc0(bitmap_bytes(n_words));

	bitmap->size = n;
	bitmap->n_words = n_words;
	return bitmap;
}

KvcBitmap *
kvc_bitmap_copy(const KvcBitmap *bitmap)
{
	return g_memdup2(bitmap, bitmap_bytes(bitmap->n_words));
}

void
kvc_bitmap_free(KvcBitmap *bitmap)
{
	g_free(bitmap);
}

size_t
kvc_bitmap_size(const KvcBitmap *bitmap)
{
	return bitmap->size;
}

static uint64_t
bit_of(const KvcBitmap *bitmap, size_t i)
{
	g_assert(i < bitmap->size);
	return UINT64_C(1) << i % WORD_BITS;
}

bool
kvc_bitmap_test(const KvcBitmap *bitmap, size_t i)
{
	uint64_t bit = bit_of(bitmap, i);

	return bitmap->words[i / WORD_BITS] & bit;
}

void
kvc_bitmap_set(KvcBitmap *bitmap, size_t i)
{
	uint64_t bit = bit_of(bitmap, i);

	bitmap->words[i / WORD_BITS] |= bit;
}

void
kvc_bitmap_clear(KvcBitmap *bitmap, size_t i)
{
	uint64_t bit = bit_of(bitmap, i);

	bitmap->words[i / WORD_BITS] &= ~bit;
}

void
kvc_bitmap_clear_all(KvcBitmap *bitmap)
{
	memset(bitmap->words, 0, bitmap->n_words * sizeof(uint64_t));
}

size_t
kvc_bitmap_count(const KvcBitmap *bitmap)
{
	size_t count = 0;

	for (size_t w = 0; w < bitmap->n_words; w++)
		count += (size_t)__builtin_popcountll(bitmap->words[w]);
	return count;
}

size_t
kvc_bitmap_leading_ones(const KvcBitmap *bitmap)
{
	for (size_t w = 0; w < bitmap->n_words; w++)
		if (bitmap->words[w] != UINT64_MAX)
			return w * WORD_BITS + (size_t)__builtin_ctzll(~bitmap->words[w]);
	return bitmap->size;
}

size_t
kvc_bitmap_next(const KvcBitmap *bitmap, size_t from)
{
	size_t w = from / WORD_BITS;
	uint64_t word;

	if (from >= bitmap->size)
		return bitmap->size;
	word = bitmap->words[w] & UINT64_MAX << from % WORD_BITS;
	while (!word) {
		if (++w == bitmap->n_words)
			return bitmap->size;
		word = bitmap->words[w];
	}
	return w * WORD_BITS + (size_t)__builtin_ctzll(word);
}

void
kvc_bitmap_truncate(KvcBitmap *bitmap, size_t from)
{
	size_t w = from / WORD_BITS;

	if (from >= bitmap->size)
		return;
	bitmap->words[w] &= ~(UINT64_MAX << from % WORD_BITS);
	memset(&bitmap->words[w + 1], 0, (bitmap->n_words - w - 1) * sizeof(uint64_t));
}

void
kvc_bitmap_or(KvcBitmap *target, const KvcBitmap *other)
{
	g_assert(target->size == other->size);
	for (size_t w = 0; w < target->n_words; w++)
		target->words[w] |= other->words[w];
}

void
kvc_bitmap_and(KvcBitmap *target, const KvcBitmap *other)
{
	g_assert(target->size == other->size);
	for (size_t w = 0; w < target->n_words; w++)
		target->words[w] &= other->words[w];
}

void
kvc_bitmap_andnot(KvcBitmap *target, const KvcBitmap *other)
{
	g_assert(target->size == other->size);
	for (size_t w = 0; w < target->n_words; w++)
		target->words[w] &= ~other->words[w];
}
