/* SPDX-License-Identifier: Apache-2.0 */

/* A shared object that is no module: it registers nothing. */

int kvc_test_silent(void);

int
kvc_test_silent(void)
{
	return 1;
}
