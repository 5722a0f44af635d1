/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_DECLS_H
#define KVCACHE_DECLS_H

/*
 * Around the declarations of every public header, and of no other one: what is declared between
 * them is what the shared library exports, all else is hidden.
 */

#include <glib.h>

#define KVC_BEGIN_DECLS G_BEGIN_DECLS _Pragma("GCC visibility push(default)")
#define KVC_END_DECLS _Pragma("GCC visibility pop") G_END_DECLS

#endif
