/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_STORE_CONTROLLER_H
#define ENGINE_STORE_CONTROLLER_H

/*
 * Replicates finished writes to L2, and deletes from L2: one thread in poll() on eventfds only
 * (the deletions themselves run on one helper thread an adapter, since adapters' delete_keys
 * and rename_key block).
 *
 * Per key everything is in order: a store and a deletion of one key never overlap, a deletion drops
 * a store that has not begun, a commit after a deletion is stored after it. A rename comes after
 * what was submitted for either key, and before what follows. Failed stores are retried with
 * back-off (3 tries), then counted, logged with the errno, and the object is clean but
 * unreplicated.
 */

#include "engine/controller-context.h"

typedef struct KvcStoreController KvcStoreController;

/* Registers its listener with the L1Manager; CONTEXT outlives the controller. */
KvcStoreController *kvc_store_controller_new(const KvcControllerContext *context,
					     const KvcStorePolicy *policy,
					     GError **error);
void kvc_store_controller_start(KvcStoreController *c);
/*
 * Quiescence: submits nothing more, waits for tasks in flight (their adapters complete or fail
 * them), releases every lock and buffer, answers every flush waiter (-ESHUTDOWN), joins. Adapters
 * are still open.
 */
void kvc_store_controller_stop(KvcStoreController *c);
void kvc_store_controller_free(KvcStoreController *c);

/*
 * Deletes KEY from ADAPTERS (bits): already hidden in the index with this ID, under which the
 * deletion log has it, and unhidden as each confirms. Any thread.
 */
void kvc_store_controller_submit_delete(KvcStoreController *c,
					KvcObjectKey *key,
					uint32_t adapters,
					uint64_t id);
/* What L1 has of KEY is nowhere else any more: stores it, unless that is under way. Any thread. */
void kvc_store_controller_submit_store(KvcStoreController *c, KvcObjectKey *key);
/* The attributes of KEY in the index changed: takes them to every adapter that has it or is getting
 * it. Any thread. */
void kvc_store_controller_submit_attributes(KvcStoreController *c, KvcObjectKey *key);
/*
 * DONE(user, error) when every store and deletion of KEY that was submitted before has ended: 0, or
 * -EIO when the last store failed on every target; at once when there is nothing to wait for.
 * "Store first". What was given up before is tried again.
 */
void kvc_store_controller_flush(KvcStoreController *c,
				KvcObjectKey *key,
				void (*done)(void *user, int error),
				void *user);
/* The same shape: DONE(user, 0) once a tier has KEY by this name, or no rename to it is pending. */
void kvc_store_controller_await_rename(KvcStoreController *c,
				       KvcObjectKey *key,
				       void (*done)(void *user, int error),
				       void *user);
/*
 * Waits until nothing is queued or in flight, but for deletions that fail and are in the deletion
 * log: 0 or -ETIMEDOUT. Blocks; any thread but the controller's.
 */
int kvc_store_controller_drain(KvcStoreController *c, int64_t timeout_ns);
/*
 * Waits, a second at most, until the deletion log was told all that the deletions submitted before
 * concern: what is to be renamed to a deleted key too. Any thread but the controller's.
 */
void kvc_store_controller_settle(KvcStoreController *c);

/*
 * Attaches ADAPTER, whose slot is filled, or detaches it; waits until that is done: 0, or
 * -ETIMEDOUT: it goes on, call again. DEADLINE_NS 0: none. No new work may name it meanwhile. One
 * thread at a time. What is attached can be named, but gets stores only after set_target.
 */
int kvc_store_controller_set_adapter(KvcStoreController *c,
				     size_t adapter,
				     bool is_wanted,
				     int64_t deadline_ns);
/*
 * ADAPTER, attached, is one that new stores may go to, after all deletions that were submitted
 * before. Does not wait; any thread.
 */
void kvc_store_controller_set_target(KvcStoreController *c, size_t adapter);

#endif
