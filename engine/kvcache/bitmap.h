/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_BITMAP_H
#define KVCACHE_BITMAP_H

/* A fixed number of bits, one for each key of a batch. Not thread-safe: one owner at a time. */

#include "kvcache/decls.h"

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>

KVC_BEGIN_DECLS

typedef struct KvcBitmap KvcBitmap;

/* A bitmap of N bits, all clear (transfer full). */
KvcBitmap *kvc_bitmap_new(size_t n);
KvcBitmap *kvc_bitmap_copy(const KvcBitmap *bitmap);
void kvc_bitmap_free(KvcBitmap *bitmap);

size_t kvc_bitmap_size(const KvcBitmap *bitmap);
bool kvc_bitmap_test(const KvcBitmap *bitmap, size_t i);
void kvc_bitmap_set(KvcBitmap *bitmap, size_t i);
void kvc_bitmap_clear(KvcBitmap *bitmap, size_t i);
void kvc_bitmap_clear_all(KvcBitmap *bitmap);

/* Number of set bits. */
size_t kvc_bitmap_count(const KvcBitmap *bitmap);
/* Number of set bits before the first clear one: the length of the prefix. */
size_t kvc_bitmap_leading_ones(const KvcBitmap *bitmap);
/* The first set bit at or after FROM, or kvc_bitmap_size() when there is none. */
size_t kvc_bitmap_next(const KvcBitmap *bitmap, size_t from);
/* Clears every bit from FROM on. */
void kvc_bitmap_truncate(KvcBitmap *bitmap, size_t from);
/* TARGET |= OTHER, TARGET &= OTHER, TARGET &= ~OTHER. Sizes must be equal. */
void kvc_bitmap_or(KvcBitmap *target, const KvcBitmap *other);
void kvc_bitmap_and(KvcBitmap *target, const KvcBitmap *other);
void kvc_bitmap_andnot(KvcBitmap *target, const KvcBitmap *other);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(KvcBitmap, kvc_bitmap_free)

KVC_END_DECLS

#endif
