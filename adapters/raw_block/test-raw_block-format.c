/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What is on the device, byte for byte: round trips, every bit that may be flipped, and noise with
 * a CRC that is right.
 */

#include "test-raw_block-util.h"

#include <kvcache/crc.h>

#define PAGE RAW_BLOCK_PAGE_BYTES
#define SUPER_CRC 12
#define HEADER_CRC 8
#define NOISY 20000

static RawBlockSuper
super_new(void)
{
	RawBlockSuper super;

	assert_true(raw_block_super_lay_out(&super, 64 * KIB, 64 * MIB));
	for (size_t i = 0; i < sizeof(super.store_id); i++)
		super.store_id[i] = (uint8_t)(i * 37 + 1);
	super.sequence = 5;
	super.last_generation = 77;
	return super;
}

static void
set_crc(uint8_t *page, size_t at)
{
	memset(page + at, 0, 4);
	uint32_t crc = GUINT32_TO_LE(kvc_crc32c(0, page, PAGE));
	memcpy(page + at, &crc, 4);
}

/* ---- Superblocks --------------------------------------------------------------------------- */

static void
test_super_round_trip(void **state)
{
	RawBlockSuper super = super_new(), back;
	uint8_t page[PAGE];
	uint32_t version = 0;

	super.is_clean = true;
	super.checkpoint_bytes = 123;
	super.checkpoint_objects = 1;
	super.checkpoint_crc = 0x12345678;
	raw_block_super_encode(&super, page);
	assert_memory_equal(page, "KVCRAWB1\1\0\0\0", 12);
	assert_int_equal(raw_block_super_decode(page, &back, &version), RAW_BLOCK_SUPER_VALID);
	uint8_t again[PAGE];
	raw_block_super_encode(&back, again);
	assert_memory_equal(page, again, PAGE);
}

/* Whatever is asked for, what comes has the room that it says, and there is little waste. */
static void
test_layouts(void **state)
{
	static const uint64_t slots[] = {4096, 8192, 12288, 1 << 16, 1 << 20, 3 << 20, 1 << 30};
	uint64_t seed = test_seed();
	uint8_t page[PAGE];
	uint32_t version;

	for (unsigned i = 0; i < 3000; i++) {
		uint64_t slot_bytes = slots[random_below(&seed, G_N_ELEMENTS(slots))];
		uint64_t total = random_next(&seed) >> (12 + random_below(&seed, 40));
		RawBlockSuper super, back;

		if (!raw_block_super_lay_out(&super, slot_bytes, total)) {
			assert_true(total < 3 * MIB + 2 * slot_bytes);
			continue;
		}
		uint64_t end = raw_block_super_end(&super);
		assert_true(end <= total);
		assert_true(super.n_slots == RAW_BLOCK_SLOTS_MAX ||
			    total - end <= 2 * MIB + 3 * slot_bytes + total / 100);
		raw_block_super_encode(&super, page);
		assert_int_equal(raw_block_super_decode(page, &back, &version),
				 RAW_BLOCK_SUPER_VALID);
	}
	RawBlockSuper super;
	assert_false(raw_block_super_lay_out(&super, 4095, 1 << 30));
	assert_false(raw_block_super_lay_out(&super, 0, 1 << 30));
	assert_false(raw_block_super_lay_out(&super, 6000, 1 << 30));
	assert_false(raw_block_super_lay_out(&super, 4096, 0));
}

static void
test_super_any_bit(void **state)
{
	RawBlockSuper super = super_new(), back;
	uint8_t page[PAGE];
	uint32_t version;

	raw_block_super_encode(&super, page);
	for (size_t bit = 0; bit < 8 * PAGE; bit++) {
		page[bit / 8] ^= (uint8_t)(1 << bit % 8);
		RawBlockSuperState got = raw_block_super_decode(page, &back, &version);
		assert_int_equal(got, bit < 64 ? RAW_BLOCK_SUPER_FOREIGN : RAW_BLOCK_SUPER_DAMAGED);
		page[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
}

static void
test_super_of_others(void **state)
{
	RawBlockSuper super = super_new(), back;
	uint8_t page[PAGE] = {0};
	uint32_t version = 0;

	assert_int_equal(raw_block_super_decode(page, &back, &version), RAW_BLOCK_SUPER_EMPTY);
	memcpy(page, "LMCIDX01", 8);
	assert_int_equal(raw_block_super_decode(page, &back, &version), RAW_BLOCK_SUPER_LMCACHE);
	memset(page, 0x5a, PAGE);
	assert_int_equal(raw_block_super_decode(page, &back, &version), RAW_BLOCK_SUPER_FOREIGN);
	raw_block_super_encode(&super, page);
	page[8] = 2;
	set_crc(page, SUPER_CRC);
	assert_int_equal(raw_block_super_decode(page, &back, &version), RAW_BLOCK_SUPER_NEWER);
	assert_int_equal(version, 2);
}

/* Noise in the fields, and a CRC that is right: what is accepted is in bounds. */
static void
test_super_noise(void **state)
{
	RawBlockSuper super = super_new(), back;
	uint64_t seed = test_seed();
	uint8_t page[PAGE];
	uint32_t version;

	for (unsigned i = 0; i < NOISY; i++) {
		raw_block_super_encode(&super, page);
		for (unsigned n = 1 + random_below(&seed, 4); n > 0; n--)
			page[16 + random_below(&seed, 96)] = (uint8_t)random_next(&seed);
		set_crc(page, SUPER_CRC);
		if (raw_block_super_decode(page, &back, &version) != RAW_BLOCK_SUPER_VALID)
			continue;
		assert_true(back.n_slots > 0 && back.n_slots <= RAW_BLOCK_SLOTS_MAX);
		assert_true(back.slot_bytes >= 4096 && back.slot_bytes % 4096 == 0);
		assert_true(back.headers_offset >= RAW_BLOCK_CHECKPOINT_OFFSET);
		assert_true(back.slots_offset > back.headers_offset);
		assert_true(raw_block_super_end(&back) > back.slots_offset);
		assert_true(back.checkpoint_bytes <= back.checkpoint_room);
	}
}

/* ---- Headers and records ------------------------------------------------------------------- */

static KvcXattrs *
xattrs_new(unsigned n, size_t bytes)
{
	KvcXattrs *xattrs = NULL;
	g_autofree uint8_t *value = g_malloc0(bytes + 1);

	for (unsigned i = 0; i < n; i++) {
		g_autofree char *name = g_strdup_printf("user.x%u", i);
		KvcXattrs *old = xattrs;

		value[0] = (uint8_t)i;
		assert_int_equal(kvc_xattrs_set(old, name, value, bytes, &xattrs), 0);
		kvc_xattrs_unref(old);
	}
	return xattrs;
}

static RawBlockHeader
header_new(const RawBlockSuper *super)
{
	return (RawBlockHeader){
		.generation = 1234567890123,
		.bytes = 2 * super->slot_bytes + 1,
		.payload_crc = 0x89abcdef,
		.data = {17, 3},
		.mtime_ns = -5,
		.version_ns = INT64_MAX,
		.mode = 0100640,
		.uid = 12,
		.gid = UINT32_MAX,
	};
}

static void
assert_same_xattrs(const KvcXattrs *a, const KvcXattrs *b)
{
	size_t cursor = 0, bytes, other_bytes, n = 0, other_cursor = 0;
	const void *value;
	const char *name;

	while (kvc_xattrs_next(a, &cursor, &name, &value, &bytes)) {
		const void *other = kvc_xattrs_get(b, name, &other_bytes);

		assert_non_null(other);
		assert_int_equal(bytes, other_bytes);
		assert_memory_equal(value, other, bytes);
		n++;
	}
	while (kvc_xattrs_next(b, &other_cursor, NULL, NULL, NULL))
		n--;
	assert_int_equal(n, 0);
}

/* KEY with XATTRS goes through a record, a header if it has room, and an entry. */
static void
check_record(KvcObjectKey *key, const KvcXattrs *xattrs)
{
	RawBlockSuper super = super_new();
	RawBlockHeader header = header_new(&super), back;
	g_autofree uint8_t *record = raw_block_record_encode(key, xattrs, &header);
	g_autoptr(KvcObjectKey) key_back = NULL;
	g_autoptr(KvcXattrs) xattrs_back = NULL;
	KvcKeyScope *scope = NULL;
	uint8_t page[PAGE], again[PAGE];
	const uint8_t *in_page;

	assert_non_null(record);
	if (header.record_bytes > RAW_BLOCK_RECORD_INLINE_BYTES)
		header.record = (RawBlockRun){40, raw_block_slots_for(&super, header.record_bytes)};
	raw_block_header_encode(&super, &header, record, page);
	assert_int_equal(raw_block_header_decode(&super, 17, page, &back, &in_page),
			 RAW_BLOCK_HEADER_OBJECT);
	raw_block_header_encode(&super, &back, record, again);
	assert_memory_equal(page, again, PAGE);
	assert_int_equal(in_page == NULL, header.record.n > 0);
	assert_true(raw_block_record_decode(&back, in_page ? in_page : record, &scope, &key_back,
					    &xattrs_back));
	assert_true(kvc_object_key_equal(key, key_back));
	assert_same_xattrs(xattrs, xattrs_back);

	size_t bytes = raw_block_entry_bytes(&header), at = 0;
	g_autofree uint8_t *entry = g_malloc(bytes);
	raw_block_entry_encode(&header, record, entry);
	assert_true(raw_block_entry_decode(&super, entry, bytes, &at, &back, &in_page));
	assert_int_equal(at, bytes);
	raw_block_header_encode(&super, &back, record, again);
	assert_memory_equal(page, again, PAGE);
	assert_memory_equal(in_page, record, header.record_bytes);
	kvc_key_scope_unref(scope);
}

static void
test_records(void **state)
{
	g_autofree char *long_model = g_strnfill(5000, 'm');
	g_autoptr(KvcKeyScope) long_scope = kvc_key_scope_new(long_model, 1, 2, "s", NULL);
	g_autoptr(KvcKeyScope) root = kvc_key_scope_new_plain("", NULL);
	g_autofree char *long_name = g_strnfill(KVC_NAME_MAX_BYTES, 'n');
	KvcObjectKey *keys[] = {
		chunk(1),
		plain(2),
		prefix(3),
		kvc_object_key_new(long_scope, KVC_SPACE_CHUNK, "\0\1\2\3", 4, NULL),
		kvc_object_key_new(root, KVC_SPACE_PLAIN, long_name, KVC_NAME_MAX_BYTES, NULL),
	};
	KvcXattrs *sets[] = {NULL, xattrs_new(1, 0), xattrs_new(20, 30), xattrs_new(1, 60000)};

	for (size_t i = 0; i < G_N_ELEMENTS(keys); i++) {
		for (size_t j = 0; j < G_N_ELEMENTS(sets); j++)
			check_record(keys[i], sets[j]);
		kvc_object_key_unref(keys[i]);
	}
	for (size_t j = 0; j < G_N_ELEMENTS(sets); j++)
		kvc_xattrs_unref(sets[j]);
	g_autofree char *longest = g_strnfill(RAW_BLOCK_RECORD_MAX_BYTES, 'm');
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new(longest, 1, 2, "s", NULL);
	g_autoptr(KvcObjectKey) key = kvc_object_key_new(scope, KVC_SPACE_CHUNK, "abcd", 4, NULL);
	RawBlockHeader header;
	assert_null(raw_block_record_encode(key, NULL, &header));
}

/* A header page of a key with a few attributes; its record is in it. */
static void
make_page(const RawBlockSuper *super, uint8_t *page)
{
	g_autoptr(KvcObjectKey) key = prefix(3);
	g_autoptr(KvcXattrs) xattrs = xattrs_new(3, 40);
	RawBlockHeader header = header_new(super);
	g_autofree uint8_t *record = raw_block_record_encode(key, xattrs, &header);

	raw_block_header_encode(super, &header, record, page);
}

static void
test_header_any_bit(void **state)
{
	RawBlockSuper super = super_new();
	RawBlockHeader back;
	const uint8_t *record;
	uint8_t page[PAGE];

	for (int tombstone = 0; tombstone < 2; tombstone++) {
		make_page(&super, page);
		if (tombstone)
			raw_block_tombstone_encode(&super, 17, 5, page);
		for (size_t bit = 0; bit < 8 * PAGE; bit++) {
			page[bit / 8] ^= (uint8_t)(1 << bit % 8);
			assert_int_equal(raw_block_header_decode(&super, 17, page, &back, &record),
					 RAW_BLOCK_HEADER_NONE);
			page[bit / 8] ^= (uint8_t)(1 << bit % 8);
		}
		assert_int_not_equal(raw_block_header_decode(&super, 17, page, &back, &record),
				     RAW_BLOCK_HEADER_NONE);
		/* Right, but not of this slot or this store. */
		assert_int_equal(raw_block_header_decode(&super, 18, page, &back, &record),
				 RAW_BLOCK_HEADER_NONE);
		RawBlockSuper other = super;
		other.store_id[15] ^= 1;
		assert_int_equal(raw_block_header_decode(&other, 17, page, &back, &record),
				 RAW_BLOCK_HEADER_NONE);
	}
}

static void
assert_in_bounds(const RawBlockSuper *super, const RawBlockHeader *header)
{
	assert_true((uint64_t)header->data.slot + header->data.n <= super->n_slots);
	assert_true((uint64_t)header->record.slot + header->record.n <= super->n_slots);
	assert_true(header->bytes <= header->data.n * super->slot_bytes);
	assert_true(header->data.n > 0);
	assert_true(header->record_bytes <= RAW_BLOCK_RECORD_MAX_BYTES);
	assert_true(header->record.n * super->slot_bytes >= header->record_bytes ||
		    header->record_bytes <= RAW_BLOCK_RECORD_INLINE_BYTES);
}

/* Decodes RECORD of HEADER with a CRC that is made right. */
static unsigned
decode_noise(RawBlockHeader *header, const uint8_t *record)
{
	g_autoptr(KvcObjectKey) key = NULL;
	g_autoptr(KvcXattrs) xattrs = NULL;
	KvcKeyScope *scope = NULL;
	/* A copy of its own: ASan sees what is read behind it. */
	g_autofree uint8_t *copy = g_memdup2(record, header->record_bytes);

	header->record_crc = kvc_crc32c(0, copy, header->record_bytes);
	bool is_right = raw_block_record_decode(header, copy, &scope, &key, &xattrs);
	assert_int_equal(is_right, key != NULL);
	if (scope)
		kvc_key_scope_unref(scope);
	return is_right;
}

static void
test_header_noise(void **state)
{
	RawBlockSuper super = super_new();
	uint64_t seed = test_seed();
	unsigned headers = 0, records = 0;
	uint8_t page[PAGE];

	for (unsigned i = 0; i < NOISY; i++) {
		RawBlockHeader back;
		const uint8_t *record = NULL;
		unsigned where = i % 2 ? 80 : 400;

		make_page(&super, page);
		for (unsigned n = 1 + random_below(&seed, 3); n > 0; n--)
			page[32 + random_below(&seed, where)] = (uint8_t)random_next(&seed);
		set_crc(page, HEADER_CRC);
		if (raw_block_header_decode(&super, 17, page, &back, &record) !=
		    RAW_BLOCK_HEADER_OBJECT)
			continue;
		headers++;
		assert_in_bounds(&super, &back);
		if (record)
			records += decode_noise(&back, record);
	}
	printf("%u of %u headers, %u records are accepted\n", headers, NOISY, records);
	assert_true(headers > NOISY / 100 && records > NOISY / 100);
}

/* ---- Checkpoints --------------------------------------------------------------------------- */

#define ENTRIES 8

/* N objects one after the other; their bytes. */
static size_t
make_checkpoint(const RawBlockSuper *super, uint8_t *data, size_t room)
{
	size_t at = 0;

	for (uint32_t i = 0; i < ENTRIES; i++) {
		g_autoptr(KvcObjectKey) key = i % 2 ? chunk(i) : plain(i);
		RawBlockHeader header = header_new(super);
		g_autofree uint8_t *record = raw_block_record_encode(key, NULL, &header);

		header.data.slot = 3 * i;
		assert_true(at + raw_block_entry_bytes(&header) <= room);
		raw_block_entry_encode(&header, record, data + at);
		at += raw_block_entry_bytes(&header);
	}
	return at;
}

/* Reads what is there, as far as it is right; how many entries. */
static unsigned
read_checkpoint(const RawBlockSuper *super, const uint8_t *data, size_t bytes)
{
	RawBlockHeader header;
	const uint8_t *record;
	unsigned n = 0;
	size_t at = 0, before = 0;

	while (at < bytes && raw_block_entry_decode(super, data, bytes, &at, &header, &record)) {
		assert_true(at > before && at <= bytes);
		assert_true(record >= data && record + header.record_bytes <= data + bytes);
		assert_in_bounds(super, &header);
		decode_noise(&header, record);
		before = at;
		n++;
	}
	return n;
}

static void
test_checkpoint_noise(void **state)
{
	RawBlockSuper super = super_new();
	uint64_t seed = test_seed();
	uint8_t data[4096];
	size_t bytes = make_checkpoint(&super, data, sizeof(data));

	assert_int_equal(read_checkpoint(&super, data, bytes), ENTRIES);
	for (unsigned i = 0; i < NOISY; i++) {
		size_t cut = random_below(&seed, 3) ? bytes : random_below(&seed, (uint32_t)bytes);
		g_autofree uint8_t *copy = g_memdup2(data, MAX(cut, 1));

		for (unsigned n = random_below(&seed, 4); n > 0 && cut > 0; n--)
			copy[random_below(&seed, (uint32_t)cut)] = (uint8_t)random_next(&seed);
		read_checkpoint(&super, copy, cut);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_super_round_trip), cmocka_unit_test(test_layouts),
		cmocka_unit_test(test_super_any_bit),	 cmocka_unit_test(test_super_of_others),
		cmocka_unit_test(test_super_noise),	 cmocka_unit_test(test_records),
		cmocka_unit_test(test_header_any_bit),	 cmocka_unit_test(test_header_noise),
		cmocka_unit_test(test_checkpoint_noise),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
