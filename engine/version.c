/* SPDX-License-Identifier: Apache-2.0 */

#include "kvcache/kvcache.h"

int
kvc_api_version(void)
{
	return KVC_API_VERSION;
}
