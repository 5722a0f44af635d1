/* SPDX-License-Identifier: Apache-2.0 */

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <kvcache/pool.h>

#define WORKS 6

typedef struct Fixture Fixture;

typedef struct Item {
	KvcWork work;
	Fixture *f;
	char name;
} Item;

/* Works write their names; one called 'G' waits for the gate. */
struct Fixture {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	char order[32];
	int is_open; /* the gate */
	Item items[WORKS];
	size_t n;
};

static void
run(KvcWork *work)
{
	Item *item = (Item *)work;
	Fixture *f = item->f;
	char name[] = {item->name, '\0'};

	pthread_mutex_lock(&f->lock);
	strcat(f->order, name);
	pthread_cond_broadcast(&f->changed);
	while (item->name == 'G' && !f->is_open)
		pthread_cond_wait(&f->changed, &f->lock);
	pthread_mutex_unlock(&f->lock);
}

static void
push(Fixture *f, KvcPool *pool, KvcPoolClass kind, char name, size_t bytes)
{
	Item *item = &f->items[f->n++];

	*item = (Item){.work = {.run = run, .bytes = bytes}, .f = f, .name = name};
	kvc_pool_push(pool, kind, &item->work);
}

static void
await_order(Fixture *f, const char *order)
{
	pthread_mutex_lock(&f->lock);
	while (strlen(f->order) < strlen(order))
		pthread_cond_wait(&f->changed, &f->lock);
	assert_string_equal(f->order, order);
	pthread_mutex_unlock(&f->lock);
}

static void
open_gate(Fixture *f)
{
	pthread_mutex_lock(&f->lock);
	f->is_open = 1;
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
}

/* One thread, so that the order is known, and it is busy until the gate is open. */
static KvcPool *
pool_new(Fixture *f, const KvcPoolLimit *stores)
{
	KvcPool *pool = kvc_pool_new("kvc-test", 1, NULL, stores, NULL);

	assert_non_null(pool);
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->changed, NULL);
	push(f, pool, KVC_POOL_FINISH, 'G', 0);
	await_order(f, "G");
	return pool;
}

static void
what_finishes_goes_first(void **state)
{
	Fixture f = {0};
	KvcPool *pool = pool_new(&f, NULL);

	push(&f, pool, KVC_POOL_STORE, 's', 1);
	push(&f, pool, KVC_POOL_LOAD, 'l', 1);
	push(&f, pool, KVC_POOL_FINISH, 'f', 1);
	push(&f, pool, KVC_POOL_LOAD, 'm', 1);
	open_gate(&f);
	kvc_pool_free(pool); /* runs what is queued */
	assert_string_equal(f.order, "Gflms");
}

/* One that is larger than the limit goes alone. */
static void
bytes_hold_stores_back(void **state)
{
	Fixture f = {0};
	KvcPool *pool = pool_new(&f, &(KvcPoolLimit){.max_bytes = 10});

	push(&f, pool, KVC_POOL_STORE, 'a', 99);
	push(&f, pool, KVC_POOL_STORE, 'b', 4);
	push(&f, pool, KVC_POOL_STORE, 'c', 6);
	push(&f, pool, KVC_POOL_LOAD, 'l', 99);
	open_gate(&f);
	await_order(&f, "Gla");
	push(&f, pool, KVC_POOL_FINISH, 'f', 0);
	await_order(&f, "Glaf");
	kvc_pool_leave(pool, KVC_POOL_STORE, 99);
	await_order(&f, "Glafbc");
	kvc_pool_free(pool);
}

static void
a_number_holds_stores_back(void **state)
{
	Fixture f = {0};
	KvcPool *pool = pool_new(&f, &(KvcPoolLimit){.max_works = 2, .max_bytes = 100});

	push(&f, pool, KVC_POOL_STORE, 'a', 0);
	push(&f, pool, KVC_POOL_STORE, 'b', 0);
	push(&f, pool, KVC_POOL_STORE, 'c', 0);
	open_gate(&f);
	push(&f, pool, KVC_POOL_FINISH, 'f', 0);
	pthread_mutex_lock(&f.lock);
	while (!strchr(f.order, 'f') || !strchr(f.order, 'b'))
		pthread_cond_wait(&f.changed, &f.lock);
	assert_null(strchr(f.order, 'c'));
	pthread_mutex_unlock(&f.lock);
	kvc_pool_leave(pool, KVC_POOL_STORE, 0);
	kvc_pool_free(pool);
	assert_int_equal(f.order[strlen(f.order) - 1], 'c');
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_finishes_goes_first),
		cmocka_unit_test(bytes_hold_stores_back),
		cmocka_unit_test(a_number_holds_stores_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
