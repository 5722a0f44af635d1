/* SPDX-License-Identifier: Apache-2.0 */

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "kvcache/crc.h"

/* Bit by bit as RFC 3720 has it: slow and obviously right. */
static uint32_t
reference_crc32c(const uint8_t *data, size_t len)
{
	uint32_t crc = 0xffffffff;

	for (size_t i = 0; i < len; i++) {
		crc ^= data[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

static void
test_known_values(void **state)
{
	uint8_t data[32];

	assert_int_equal(kvc_crc32c(0, "123456789", 9), 0xe3069283);
	/* RFC 3720, B.4 */
	memset(data, 0, sizeof(data));
	assert_int_equal(kvc_crc32c(0, data, sizeof(data)), 0x8a9136aa);
	memset(data, 0xff, sizeof(data));
	assert_int_equal(kvc_crc32c(0, data, sizeof(data)), 0x62a8ab43);
	for (uint8_t i = 0; i < sizeof(data); i++)
		data[i] = i;
	assert_int_equal(kvc_crc32c(0, data, sizeof(data)), 0x46dd794e);
}

static void
test_nothing_changes_nothing(void **state)
{
	assert_int_equal(kvc_crc32c(0, "", 0), 0);
	assert_int_equal(kvc_crc32c(0, NULL, 0), 0);
	assert_int_equal(kvc_crc32c(0x12345678, NULL, 0), 0x12345678);
}

static void
test_every_length_and_alignment(void **state)
{
	uint8_t data[300];

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 151 + 7);
	for (size_t start = 0; start < 16; start++)
		for (size_t len = 0; start + len <= sizeof(data); len++)
			assert_int_equal(kvc_crc32c(0, data + start, len),
					 reference_crc32c(data + start, len));
}

static void
test_pieces_continue(void **state)
{
	static const char text[] =
		"the hash of chunk n covers everything before it, so only a prefix is usable";
	uint32_t whole = kvc_crc32c(0, text, strlen(text));

	for (size_t cut = 0; cut <= strlen(text); cut++)
		assert_int_equal(
			kvc_crc32c(kvc_crc32c(0, text, cut), text + cut, strlen(text) - cut),
			whole);
}

static void
test_implementation_has_a_name(void **state)
{
	const char *name = kvc_crc32c_implementation();

	assert_true(!strcmp(name, "isa-l") || !strcmp(name, "table"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_known_values),
		cmocka_unit_test(test_nothing_changes_nothing),
		cmocka_unit_test(test_every_length_and_alignment),
		cmocka_unit_test(test_pieces_continue),
		cmocka_unit_test(test_implementation_has_a_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
