/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_KVCACHE_H
#define KVCACHE_KVCACHE_H

/*
 * All of the library: cc $(pkg-config --cflags kvcache) program.c $(pkg-config --libs kvcache).
 * A front end begins with storage-manager.h, an adapter with adapter.h, a policy with policy.h.
 */

#include "kvcache/adapter.h"
#include "kvcache/attributes.h"
#include "kvcache/bitmap.h"
#include "kvcache/breaker.h"
#include "kvcache/connector.h"
#include "kvcache/crc.h"
#include "kvcache/decls.h"
#include "kvcache/failures.h"
#include "kvcache/io.h"
#include "kvcache/key-codec.h"
#include "kvcache/object-key.h"
#include "kvcache/options.h"
#include "kvcache/policy.h"
#include "kvcache/pool.h"
#include "kvcache/record-log.h"
#include "kvcache/registry.h"
#include "kvcache/storage-manager.h"
#include "kvcache/task-board.h"

KVC_BEGIN_DECLS

/*
 * 1000 * MAJOR + MINOR. MAJOR is raised when a program that was compiled before might not work any
 * more: a function or field that is gone or means something else, a struct that callers allocate
 * whose size is another. It is the number in the SONAME (libkvcache.so.MAJOR) and in the version of
 * the symbols. MINOR is raised when something is added, and begins at 0 again with a new MAJOR.
 * MAJOR 0 is before the first release: there each MINOR may change anything.
 * The interfaces of modules have numbers of their own: KVC_L2_ADAPTER_API and KVC_POLICY_API.
 */
#define KVC_API_VERSION 4

/*
 * KVC_API_VERSION of the library that is running. Not less than the one that the program was
 * compiled with, or what was added since is missing. Any thread.
 */
int kvc_api_version(void);

KVC_END_DECLS

#endif
