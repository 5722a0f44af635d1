/* SPDX-License-Identifier: Apache-2.0 */

#include "config.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#include "kvcache/options.h"

static const KvcOptionSpec specs[] = {
	{.name = "base_path", .type = KVC_OPTION_STRING, .required = true, .help = "the directory"},
	{.name = "layout", .type = KVC_OPTION_STRING, .help = "of the files"},
	{.name = "use_odirect",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "true",
	 .help = "O_DIRECT"},
	{.name = "depth",
	 .type = KVC_OPTION_INT,
	 .default_value = "8",
	 .min = 1,
	 .max = 64,
	 .help = "d"},
	{.name = "offset", .type = KVC_OPTION_INT, .help = "any number"},
	{.name = "capacity", .type = KVC_OPTION_SIZE, .default_value = "4G", .help = "bytes"},
	{.name = "block", .type = KVC_OPTION_SIZE, .min = 4096, .help = "bytes"},
	{.name = "rate", .type = KVC_OPTION_DOUBLE, .min = 0, .max = 1, .help = "of failures"},
	{.name = "password", .type = KVC_OPTION_STRING, .help = "p", .is_secret = true},
	{.name = "pin", .type = KVC_OPTION_INT, .max = 99, .help = "digits", .is_secret = true},
	{.name = NULL},
};

static const KvcOptionSpec common[] = {
	{.name = "shared", .type = KVC_OPTION_BOOL, .default_value = "no", .help = "with others"},
	{.name = NULL},
};

static KvcOptions *
parse_checked(const char *text)
{
	g_autoptr(GError) error = NULL;
	KvcOptions *options = kvc_options_parse(text, &error);

	if (!options || !kvc_options_check(options, specs, common, &error))
		fail_msg("%s: %s", text, error->message);
	return options;
}

static void
assert_parse_refused(const char *text, const char *quoted)
{
	g_autoptr(GError) error = NULL;

	assert_null(kvc_options_parse(text, &error));
	assert_true(g_error_matches(error, KVC_OPTIONS_ERROR, EINVAL));
	if (!strstr(error->message, quoted))
		fail_msg("%s: no %s in: %s", text, quoted, error->message);
	assert_null(kvc_options_parse(text, NULL));
}

/* REST follows type=fs,base_path=/d */
static void
assert_check_refused(const char *rest, int code, const char *quoted)
{
	g_autofree char *text = g_strconcat("type=fs,base_path=/d,", rest, NULL);
	g_autoptr(KvcOptions) options = kvc_options_parse(text, NULL);
	g_autoptr(GError) error = NULL;

	assert_non_null(options);
	assert_false(kvc_options_check(options, specs, common, &error));
	if (!g_error_matches(error, KVC_OPTIONS_ERROR, code) || !strstr(error->message, quoted))
		fail_msg("%s: no %s in: %s", rest, quoted, error->message);
}

static void
test_pairs(void **state)
{
	g_autoptr(KvcOptions) options = parse_checked(
		"base_path=/data,type=fs,use_odirect=off,depth=64,offset=-9223372036854775808,"
		"capacity=1t,block=4096,rate=0.25,shared=yes");

	assert_string_equal(kvc_options_type(options), "fs");
	assert_string_equal(kvc_options_get_string(options, "base_path"), "/data");
	assert_false(kvc_options_get_bool(options, "use_odirect"));
	assert_true(kvc_options_get_bool(options, "shared"));
	assert_int_equal(kvc_options_get_int(options, "depth"), 64);
	assert_true(kvc_options_get_int(options, "offset") == INT64_MIN);
	assert_true(kvc_options_get_size(options, "capacity") == UINT64_C(1) << 40);
	assert_int_equal(kvc_options_get_size(options, "block"), 4096);
	assert_true(kvc_options_get_double(options, "rate") == 0.25);
}

static void
test_defaults(void **state)
{
	g_autoptr(KvcOptions) options = parse_checked("type=fs,base_path=/d");

	assert_true(kvc_options_get_bool(options, "use_odirect"));
	assert_false(kvc_options_get_bool(options, "shared"));
	assert_int_equal(kvc_options_get_int(options, "depth"), 8);
	assert_true(kvc_options_get_size(options, "capacity") == UINT64_C(4) << 30);
	/* No default and not given: nothing. */
	assert_null(kvc_options_get_string(options, "layout"));
	assert_null(kvc_options_get_string(options, "rate"));
	assert_int_equal(kvc_options_get_size(options, "block"), 0);
	assert_true(kvc_options_get_double(options, "rate") == 0);
}

static void
test_values_may_quote(void **state)
{
	g_autoptr(KvcOptions) options = parse_checked("type=fs,base_path=/a\\,b\\\\c=d\\x,layout=");

	assert_string_equal(kvc_options_get_string(options, "base_path"), "/a,b\\c=dx");
	assert_string_equal(kvc_options_get_string(options, "layout"), "");
}

static void
test_malformed_pairs(void **state)
{
	assert_parse_refused("", "position 1 a key");
	assert_parse_refused("fs", "position 3 a '='");
	assert_parse_refused("type=fs,", "position 9 a key");
	assert_parse_refused("type=fs,,a=b", "position 9 a key");
	assert_parse_refused("type=fs,=b", "position 9 a key");
	assert_parse_refused("type=fs, a=b", "position 9 a key");
	assert_parse_refused("type=fs,a b=c", "position 10 a '='");
	assert_parse_refused("type=fs,a=b\\", "backslash");
	assert_parse_refused("type=fs,a=b,a=b", "\"a\" is there twice, again at position 13");
	assert_parse_refused("type=fs,type=fs", "\"type\" is there twice");
	assert_parse_refused("base_path=/d", "\"type\" is needed");
	assert_parse_refused("type=,base_path=/d", "\"type\" is needed");
}

/* No part of TEXT that may be a value is in its error. */
static void
assert_hidden(const char *text)
{
	g_autoptr(GError) error = NULL;
	g_autoptr(KvcOptions) options = kvc_options_parse(text, &error);

	if (options)
		assert_false(kvc_options_check(options, specs, common, &error));
	assert_non_null(error);
	if (strstr(error->message, "hunter2") || strstr(error->message, "4711"))
		fail_msg("%s: %s", text, error->message);
}

static void
test_secrets_are_not_shown(void **state)
{
	static const char *const texts[] = {
		"type=fs,password=hunter2,oops",
		"type=fs,password=a,hunter2",
		"type=fs,password=a,hunter2 =b",
		"type=fs,password=hunter2\\",
		"type=fs,password=hunter2,password=hunter2",
		"password=hunter2",
		"type=,password=hunter2",
		"type=fs,password=hunter2",
		"type=fs,passwort=hunter2,base_path=/d",
		"type=fs,base_path=/d,password=hunter2,depth=0",
		"type=fs,base_path=/d,pin=4711",
		"type=fs,base_path=/d,pin=4711x",
		"{\"type\":\"fs\",\"password\":\"hunter2\"",
		"{\"type\":\"fs\",\"password\":\"hunter2",
		"{\"type\":\"fs\",\"password\":hunter2}",
		"{\"type\":\"fs\",\"password\":'hunter2'}",
		"{\"type\":\"fs\",\"password\" \"hunter2\"}",
		"{\"type\":\"fs\",\"password\":\"a\" \"hunter2\"}",
		"{\"type\":\"fs\",\"password\":\"a\",\"hunter2\"}",
		"{\"type\":\"fs\",\"password\":\"hunter2\",}",
		"{\"type\":\"fs\",\"password\":\"hunter2\",hunter2}",
		"{\"type\":\"fs\",\"password\":[\"hunter2\"]}",
		"{\"type\":\"fs\",\"password\":4711x}",
		"{\"type\":\"fs\",\"password\":\"hunter2\",\"password\":\"hunter2\"}",
		"{\"type\":\"fs\",\"password\":\"hunter2\"} hunter2",
		"{\"type\":\"fs\",\"password\":\"hunter2\\xff\"}",
		"{\"password\":\"hunter2\"}",
		"{\"type\":\"fs\",\"base_path\":\"/d\",\"pin\":4711}",
	};

	for (size_t i = 0; i < G_N_ELEMENTS(texts); i++)
		assert_hidden(texts[i]);
	assert_check_refused("pin=4711", ERANGE, "option \"pin\": a wrong value");
	assert_check_refused("depth=4711", ERANGE, "option \"depth\": \"4711\" is out of range");
}

static void
test_unknown_and_missing_keys(void **state)
{
	g_autoptr(KvcOptions) missing = kvc_options_parse("type=fs", NULL);
	g_autoptr(KvcOptions) empty = kvc_options_parse("type=fs,base_path=", NULL);
	g_autoptr(GError) error = NULL;

	assert_check_refused("dept=3", ENOENT,
			     "\"fs\" has no option \"dept\", did you mean \"depth\"?");
	assert_check_refused("share=1", ENOENT, "did you mean \"shared\"?");
	assert_check_refused("zzzzzz=1", ENOENT, "\"zzzzzz\"; it takes: base_path, layout");
	assert_false(kvc_options_check(missing, specs, common, &error));
	assert_true(g_error_matches(error, KVC_OPTIONS_ERROR, EINVAL));
	assert_non_null(
		strstr(error->message, "\"fs\" needs the option \"base_path\" (the directory)"));
	g_clear_error(&error);
	assert_false(kvc_options_check(empty, specs, common, &error));
	assert_non_null(strstr(error->message, "\"base_path\": is empty"));
}

static void
test_module_without_options(void **state)
{
	static const KvcOptionSpec none[] = {{.name = NULL}};
	g_autoptr(KvcOptions) options = kvc_options_parse("type=null", NULL);
	g_autoptr(KvcOptions) unknown = kvc_options_parse("type=null,a=b", NULL);
	g_autoptr(GError) error = NULL;

	assert_true(kvc_options_check(options, none, NULL, NULL));
	assert_true(kvc_options_check(options, NULL, NULL, NULL));
	assert_false(kvc_options_check(unknown, none, NULL, &error));
	assert_non_null(strstr(error->message, "it takes: none"));
}

static void
test_wrong_values(void **state)
{
	assert_check_refused("use_odirect=maybe", EINVAL,
			     "option \"use_odirect\": \"maybe\" is neither");
	assert_check_refused("use_odirect=", EINVAL, "\"\"");
	assert_check_refused("depth=8x", EINVAL, "option \"depth\": \"8x\"");
	assert_check_refused("depth=", EINVAL, "\"\" is not a whole number");
	assert_check_refused("depth= 8", EINVAL, "\" 8\"");
	assert_check_refused("depth=+8", EINVAL, "\"+8\"");
	assert_check_refused("depth=-", EINVAL, "\"-\"");
	assert_check_refused("depth=1.0", EINVAL, "\"1.0\"");
	assert_check_refused("depth=0x8", EINVAL, "\"0x8\"");
	assert_check_refused("depth=0", ERANGE, "\"0\" is out of range, 1 to 64");
	assert_check_refused("depth=65", ERANGE, "1 to 64");
	assert_check_refused("depth=9223372036854775808", ERANGE, "64 bits");
	assert_check_refused("offset=-9223372036854775809", ERANGE, "64 bits");
	assert_check_refused("block=4095", ERANGE, "\"4095\" is too small, at least 4096");
	assert_check_refused("capacity=lots", EINVAL,
			     "option \"capacity\": \"lots\" is not a size");
	assert_check_refused("rate=1.1", ERANGE, "0 to 1");
	assert_check_refused("rate=-0.1", ERANGE, "0 to 1");
}

static void
test_wrong_doubles(void **state)
{
	static const char *const texts[] = {
		"",   "nan", "NaN", "inf", "-inf", "infinity", "0x1p-1", "1.5.2", "1e",	  "e1",
		" 1", "1 ",  "+1",  "-",   ".",	   "--1",      "1,5",	 "1e-",	  "half",
	};

	for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
		g_autofree char *rest = g_strescape(texts[i], NULL);
		g_autofree char *pair = g_strdup_printf("rate=%s", rest);

		if (!strchr(pair, ','))
			assert_check_refused(pair, EINVAL, "is not a decimal number");
	}
	assert_check_refused("rate=1e999", ERANGE, "too large");
}

static void
assert_size(const char *text, uint64_t expected)
{
	g_autoptr(GError) error = NULL;
	uint64_t bytes = 1;

	assert_true(kvc_parse_size(text, &bytes, &error));
	assert_null(error);
	assert_true(bytes == expected);
}

static void
assert_size_refused(const char *text, int code)
{
	g_autofree char *quoted = g_strdup_printf("\"%s\"", text);
	g_autoptr(GError) error = NULL;
	uint64_t bytes = 77;

	assert_false(kvc_parse_size(text, &bytes, &error));
	if (!g_error_matches(error, KVC_OPTIONS_ERROR, code) || !strstr(error->message, quoted))
		fail_msg("%s: %s", text, error->message);
	assert_int_equal(bytes, 77); /* outputs are not touched on failure */
}

static void
test_sizes(void **state)
{
	assert_size("0", 0);
	assert_size("123", 123);
	assert_size("007", 7);
	assert_size("64K", 64 << 10);
	assert_size("64k", 64 << 10);
	assert_size("512M", 512 << 20);
	assert_size("8G", UINT64_C(8) << 30);
	assert_size("8g", UINT64_C(8) << 30);
	assert_size("3T", UINT64_C(3) << 40);
	assert_size("18446744073709551615", UINT64_MAX);
	assert_size("16777215T", UINT64_C(16777215) << 40);
	assert_size_refused("18446744073709551616", ERANGE);
	assert_size_refused("16777216T", ERANGE);
	assert_size_refused("99999999999999999999G", ERANGE);
}

static void
test_malformed_sizes(void **state)
{
	static const char *const texts[] = {"",	    "-1",  "+1",  " 1",	 "1 ",	 "1.5.2",
					    "1.5G", "10Q", "G",	  "1GB", "1KiB", "KK",
					    "0x10", "1e3", "nan", "inf", "1K1"};

	for (size_t i = 0; i < G_N_ELEMENTS(texts); i++)
		assert_size_refused(texts[i], EINVAL);
}

static void
test_nearest_name(void **state)
{
	static const char *const names[] = {"fs", "mock", "raw_block", "resp", "s3", NULL};
	static const char *const none[] = {NULL};

	assert_string_equal(kvc_nearest_name("raw_blok", names), "raw_block");
	assert_string_equal(kvc_nearest_name("rawblock", names), "raw_block");
	assert_string_equal(kvc_nearest_name("mokc", names), "mock");
	assert_string_equal(kvc_nearest_name("mock", names), "mock");
	assert_string_equal(kvc_nearest_name("fss", names), "fs");
	assert_string_equal(kvc_nearest_name("f", names), "fs");
	assert_null(kvc_nearest_name("redis", names));
	assert_null(kvc_nearest_name("xy", names));
	assert_null(kvc_nearest_name("", names));
	assert_null(kvc_nearest_name("fs", none));
}

#ifdef HAVE_JSON_GLIB

static void
test_json(void **state)
{
	g_autoptr(KvcOptions) options = parse_checked(
		" {\"type\": \"fs\", \"base_path\": \"/d,a\\\\t\\\"a\", \"use_odirect\": false,\n"
		"  \"depth\": 16, \"offset\": \"-3\", \"capacity\": \"2G\", \"block\": 8192,"
		"  \"rate\": 0.8, \"shared\": true} \n");

	assert_string_equal(kvc_options_type(options), "fs");
	assert_string_equal(kvc_options_get_string(options, "base_path"), "/d,a\\t\"a");
	assert_false(kvc_options_get_bool(options, "use_odirect"));
	assert_true(kvc_options_get_bool(options, "shared"));
	assert_int_equal(kvc_options_get_int(options, "depth"), 16);
	assert_int_equal(kvc_options_get_int(options, "offset"), -3);
	assert_true(kvc_options_get_size(options, "capacity") == UINT64_C(2) << 30);
	assert_int_equal(kvc_options_get_size(options, "block"), 8192);
	assert_true(kvc_options_get_double(options, "rate") == 0.8);
	assert_string_equal(kvc_options_get_string(options, "rate"), "0.8");
}

static void
test_json_numbers_are_exact(void **state)
{
	g_autoptr(KvcOptions) options = parse_checked(
		"{\"type\":\"fs\",\"base_path\":\"/d\",\"offset\":-9223372036854775808,"
		"\"capacity\":9223372036854775807,\"rate\":1.0e-1,\"depth\":1e1}");

	assert_true(kvc_options_get_int(options, "offset") == INT64_MIN);
	assert_true(kvc_options_get_size(options, "capacity") == INT64_MAX);
	assert_true(kvc_options_get_double(options, "rate") == 0.1);
	assert_int_equal(kvc_options_get_int(options, "depth"), 10);
}

static void
test_malformed_json(void **state)
{
	assert_parse_refused("{", "not closed");
	assert_parse_refused("{}", "\"type\" is needed");
	assert_parse_refused("{\"type\":\"fs\"", "not closed");
	assert_parse_refused("{\"type\":\"fs", "string without end begins at position 9");
	assert_parse_refused("{\"type\":\"fs\\", "string without end");
	assert_parse_refused("{\"type\":\"fs\"} x", "text after the object at position 14");
	assert_parse_refused("{\"type\":\"fs\"}{\"type\":\"s3\"}", "text after the object");
	assert_parse_refused("{type:\"fs\"}", "Parse error");
	assert_parse_refused("{\"type\":\"fs\",}", "Parse error at line 1, position 13");
	assert_parse_refused("{\"type\" \"fs\"}", "Parse error");
	assert_parse_refused("{\"type\":\"fs\"]", "Parse error");
	assert_parse_refused("{\"type\":'fs'}", "character at position 9");
	assert_parse_refused("{/*c*/\"type\":\"fs\"}", "character at position 2");
	assert_parse_refused("{\"type\":\"f\\u0000s\"}", "NUL character at position 11");
	assert_parse_refused("{\"type\":\"\xff\"}", "UTF-8");
	assert_parse_refused("{\"type\":\"fs\",\"a\":1,\"a\":2}", "\"a\" is there twice");
	assert_parse_refused("{\"type\":\"fs\",\"type\":\"fs\"}", "\"type\" is there twice");
}

static void
test_malformed_json_numbers(void **state)
{
	static const char *const numbers[] = {"010", "0x10", "1.", "1.5.2", "-",   "--1", "1e",
					      "1e+", "1a",   "00", "-01",   "0b1", "1.e3"};
	static const char *const large[] = {"9223372036854775808", "-9223372036854775809",
					    "99999999999999999999999"};

	for (size_t i = 0; i < G_N_ELEMENTS(numbers); i++) {
		g_autofree char *text = g_strdup_printf("{\"type\":\"fs\",\"a\":%s}", numbers[i]);

		assert_parse_refused(text, "malformed number at position 18");
	}
	for (size_t i = 0; i < G_N_ELEMENTS(large); i++) {
		g_autofree char *text = g_strdup_printf("{\"type\":\"fs\",\"a\":%s}", large[i]);

		assert_parse_refused(text, "number too large at position 18");
	}
	assert_parse_refused("{\"type\":\"fs\",\"a\":.5}", "character at position 18");
	assert_parse_refused("{\"type\":\"fs\",\"a\":+5}", "character at position 18");
}

static void
test_json_values_are_flat(void **state)
{
	g_autoptr(GString) deep = g_string_new("{\"type\":\"fs\",\"a\":");

	assert_parse_refused("{\"type\":\"fs\",\"eviction\":{\"type\":\"LRU\"}}",
			     "key \"eviction\" is");
	assert_parse_refused("{\"type\":\"fs\",\"list\":[1]}", "key \"list\" is");
	assert_parse_refused("{\"type\":\"fs\",\"nothing\":null}", "key \"nothing\" is");
	assert_parse_refused("{\"type\":{}}", "key \"type\" is");
	for (int i = 0; i < 100000; i++)
		g_string_append_c(deep, '[');
	assert_parse_refused(deep->str, "too deep");
}

static void
test_json_infinity(void **state)
{
	g_autoptr(KvcOptions) options =
		kvc_options_parse("{\"type\":\"fs\",\"base_path\":\"/d\",\"rate\":1e999}", NULL);

	assert_non_null(options);
	assert_false(kvc_options_check(options, specs, common, NULL));
}

#else

static void
test_json_is_not_there(void **state)
{
	assert_parse_refused("{\"type\":\"fs\"}", "this build has no JSON");
}

#endif

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pairs),
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_values_may_quote),
		cmocka_unit_test(test_malformed_pairs),
		cmocka_unit_test(test_secrets_are_not_shown),
		cmocka_unit_test(test_unknown_and_missing_keys),
		cmocka_unit_test(test_module_without_options),
		cmocka_unit_test(test_wrong_values),
		cmocka_unit_test(test_wrong_doubles),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_malformed_sizes),
		cmocka_unit_test(test_nearest_name),
#ifdef HAVE_JSON_GLIB
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_json_numbers_are_exact),
		cmocka_unit_test(test_malformed_json),
		cmocka_unit_test(test_malformed_json_numbers),
		cmocka_unit_test(test_json_values_are_flat),
		cmocka_unit_test(test_json_infinity),
#else
		cmocka_unit_test(test_json_is_not_there),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
