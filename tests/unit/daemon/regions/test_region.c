// Tests the registry of regions: offers, tokens, pins and closes in every order, against a model and from several threads.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/regions/region.h"

enum { PAGE = 4096, MAX_BYTES = 1 << 20, MAX_REGIONS = 5 };

static void assert_ok(err_t e) {
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
}

static struct region_registry *make_registry(void) {
    struct region_registry *registry;
    assert_ok(region_registry_create(&(struct region_limits){MAX_BYTES, MAX_REGIONS, MAX_REGIONS}, &registry));
    return registry;
}

static struct region_offer offer_at(struct region_registry *registry, uint64_t bytes, int64_t now_ns) {
    struct region_offer offer;
    assert_ok(region_offer(registry, "unix:1", bytes, now_ns, &offer));
    return offer;
}

static void a_descriptor_is_the_same_memory_and_sealed(void **state) {
    (void)state;
    struct region_registry *registry = make_registry();
    struct region_offer offer = offer_at(registry, PAGE + 100, 0);
    uint64_t id;
    int fd;
    assert_ok(region_redeem(registry, offer.token, 1, &id, &fd));
    assert_true(id == offer.id);
    assert_int_equal(fcntl(fd, F_GET_SEALS), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(ftruncate(fd, 1 << 20), -1);
    uint8_t *theirs = mmap(NULL, PAGE + 100, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *ours;
    close(fd);
    struct region *region;
    assert_ok(region_pin(registry, offer.id, 64, PAGE + 36, &region, &ours));
    theirs[64] = 11;
    assert_int_equal(ours[0], 11);
    ours[PAGE + 35] = 12;
    assert_int_equal(theirs[PAGE + 99], 12);
    munmap(theirs, PAGE + 100);
    region_unpin(registry, region);
    region_registry_destroy(registry);
}

static void extents_must_be_within_their_region(void **state) {
    (void)state;
    struct region_registry *registry = make_registry();
    uint64_t id = offer_at(registry, PAGE, 0).id;
    static const struct {
        uint64_t offset, length;
        enum expertd_err_code code;
    } CASES[] = {
        {0, PAGE, EXPERTD_ERR_OK},
        {64, PAGE - 64, EXPERTD_ERR_OK},
        {PAGE, 0, EXPERTD_ERR_OK},
        {0, 0, EXPERTD_ERR_OK},
        {0, PAGE + 1, EXPERTD_ERR_TENSOR_BYTES},
        {64, PAGE - 63, EXPERTD_ERR_TENSOR_BYTES},
        {PAGE + 64, 0, EXPERTD_ERR_TENSOR_BYTES},
        {UINT64_MAX - 63, 64, EXPERTD_ERR_TENSOR_BYTES},
        {UINT64_MAX - 63, UINT64_MAX, EXPERTD_ERR_TENSOR_BYTES},
        {64, UINT64_MAX - 63, EXPERTD_ERR_TENSOR_BYTES},
        {0, UINT64_MAX, EXPERTD_ERR_TENSOR_BYTES},
        {1, 1, EXPERTD_ERR_TENSOR_BYTES},
        {63, 1, EXPERTD_ERR_TENSOR_BYTES},
        {UINT64_MAX, 1, EXPERTD_ERR_TENSOR_BYTES},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct region *region;
        uint8_t *data;
        assert_int_equal(region_pin(registry, id, CASES[i].offset, CASES[i].length, &region, &data).code, CASES[i].code);
        if (CASES[i].code == EXPERTD_ERR_OK) {
            assert_int_equal((uintptr_t)data % REGION_ALIGN, 0);
            region_unpin(registry, region);
        } else {
            assert_null(data);
        }
    }
    region_registry_destroy(registry);
}

static void sizes_and_numbers_are_bounded(void **state) {
    (void)state;
    struct region_registry *registry = make_registry();
    struct region_offer offers[MAX_REGIONS], none;
    assert_int_equal(region_offer(registry, "unix:1", 0, 0, &none).code, EXPERTD_ERR_TENSOR_BYTES);
    assert_string_equal(expertd_err_field(), "bytes");
    assert_int_equal(region_offer(registry, "unix:1", MAX_BYTES + 1, 0, &none).code, EXPERTD_ERR_TOO_LARGE);
    assert_int_equal(region_offer(registry, "unix:1", UINT64_MAX, 0, &none).code, EXPERTD_ERR_TOO_LARGE);
    for (int i = 0; i < MAX_REGIONS; i++) {
        offers[i] = offer_at(registry, MAX_BYTES, 0);
    }
    assert_int_equal(region_offer(registry, "unix:1", 1, 0, &none).code, EXPERTD_ERR_QUEUE_FULL);
    struct region *region;
    uint8_t *data;
    assert_ok(region_pin(registry, offers[0].id, 0, 1, &region, &data));
    assert_ok(region_close(registry, offers[0].id));
    assert_int_equal(region_offer(registry, "unix:1", 1, 0, &none).code, EXPERTD_ERR_QUEUE_FULL); // its memory is still in use
    region_unpin(registry, region);
    offer_at(registry, 1, 0);
    struct region_counts counts = region_counts(registry);
    assert_int_equal(counts.open, MAX_REGIONS);
    assert_int_equal(counts.held, MAX_REGIONS);
    assert_int_equal(counts.bytes, (uint64_t)(MAX_REGIONS - 1) * MAX_BYTES + 1);
    region_registry_destroy(registry);
}

// A region counts for the peer that requested it until its memory is freed: offered, owned, or closed and in use.
static void no_peer_takes_all_regions(void **state) {
    (void)state;
    enum { EACH = 2 };
    struct region_registry *registry;
    struct region_offer offers[EACH], none;
    struct region *region;
    uint8_t *data;
    uint64_t id;
    int fd;
    assert_ok(region_registry_create(&(struct region_limits){MAX_BYTES, MAX_REGIONS, EACH}, &registry));
    for (int i = 0; i < EACH; i++) {
        assert_ok(region_offer(registry, "unix:1", PAGE, 0, &offers[i]));
    }
    assert_int_equal(region_offer(registry, "unix:1", PAGE, 0, &none).code, EXPERTD_ERR_QUEUE_FULL);
    assert_non_null(strstr(expertd_err_message(), "this connection holds 2 regions"));
    for (int i = 0; i < EACH; i++) {
        assert_ok(region_offer(registry, "unix:11", PAGE, 0, &none));
    }
    assert_ok(region_redeem(registry, offers[0].token, 1, &id, &fd));
    close(fd);
    assert_ok(region_pin(registry, id, 0, 1, &region, &data));
    assert_ok(region_close(registry, id));
    assert_int_equal(region_offer(registry, "unix:1", PAGE, 1, &none).code, EXPERTD_ERR_QUEUE_FULL);
    region_unpin(registry, region);
    assert_ok(region_offer(registry, "unix:1", PAGE, 1, &none));
    assert_int_equal(region_expire(registry, REGION_OFFER_NS), REGION_OFFER_NS + 1); // all offers made at time 0
    for (int i = 1; i < EACH; i++) {
        assert_ok(region_offer(registry, "unix:1", PAGE, 1, &none));
    }
    assert_int_equal(region_offer(registry, "unix:1", PAGE, 1, &none).code, EXPERTD_ERR_QUEUE_FULL);
    assert_ok(region_offer(registry, "unix:12", PAGE, 1, &none));
    region_registry_destroy(registry);
}

static void a_token_works_once_and_in_time(void **state) {
    (void)state;
    struct region_registry *registry = make_registry();
    struct region_offer first = offer_at(registry, 1, 0), second = offer_at(registry, 1, 100);
    uint64_t id;
    int fd;
    for (size_t bit = 0; bit < 8 * REGION_TOKEN_BYTES; bit++) { // a token with one wrong bit is refused
        first.token[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(region_redeem(registry, first.token, 1, &id, &fd).code, EXPERTD_ERR_PERMISSION);
        assert_int_equal(fd, -1);
        first.token[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_ok(region_redeem(registry, first.token, REGION_OFFER_NS - 1, &id, &fd));
    close(fd);
    assert_int_equal(region_redeem(registry, first.token, 2, &id, &fd).code, EXPERTD_ERR_PERMISSION);
    assert_int_equal(region_redeem(registry, second.token, 100 + REGION_OFFER_NS, &id, &fd).code, EXPERTD_ERR_PERMISSION);
    assert_true(region_expire(registry, 99 + REGION_OFFER_NS) == 100 + REGION_OFFER_NS);
    assert_true(region_is_open(registry, second.id));
    assert_true(region_expire(registry, 100 + REGION_OFFER_NS) == CLOCK_NEVER);
    assert_false(region_is_open(registry, second.id));
    assert_true(region_is_open(registry, first.id)); // an owned region does not expire
    region_registry_destroy(registry);
}

static void count_change(void *context) {
    ++*(int *)context;
}

static void offers_and_closes_call_the_watcher(void **state) {
    (void)state;
    struct region_registry *registry = make_registry();
    int changes = 0;
    region_registry_watch(registry, count_change, &changes);
    uint64_t id = offer_at(registry, 1, 0).id;
    assert_int_equal(changes, 1);
    assert_ok(region_close(registry, id));
    assert_int_equal(changes, 2);
    assert_int_equal(region_close(registry, id).code, EXPERTD_ERR_REGION_UNKNOWN);
    assert_int_equal(region_close(registry, 0).code, EXPERTD_ERR_REGION_UNKNOWN);
    assert_int_equal(changes, 2);
    region_registry_destroy(registry);
}

static int open_descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) {
        count += fcntl(fd, F_GETFD) != -1;
    }
    return count;
}

// ---- every order of events, against a model

struct modelled {
    struct region_offer offer;
    uint64_t bytes;
    int64_t offered_ns;
    bool open, redeemed;
    struct region *pinned;
    uint8_t *data;
    unsigned pins;
    uint8_t mark; // value of its first byte
};

struct model {
    struct region_registry *registry;
    struct modelled regions[MAX_REGIONS];
    int64_t now_ns;
    unsigned seed;
};

static unsigned draw(struct model *m, unsigned below) {
    m->seed = m->seed * 1103515245 + 12345;
    return (m->seed >> 16) % below;
}

static bool is_held(const struct modelled *r) {
    return r->open || r->pins > 0;
}

static void model_offer(struct model *m, struct modelled *r) {
    uint64_t bytes = 1 + draw(m, 3 * PAGE);
    if (is_held(r)) {
        return;
    }
    *r = (struct modelled){.bytes = bytes, .offered_ns = m->now_ns, .open = true};
    r->offer = offer_at(m->registry, bytes, m->now_ns);
}

static void model_redeem(struct model *m, struct modelled *r) {
    uint64_t id;
    int fd;
    bool works = r->open && !r->redeemed && m->now_ns < r->offered_ns + REGION_OFFER_NS;
    err_t e = region_redeem(m->registry, r->offer.token, m->now_ns, &id, &fd);
    assert_int_equal(e.code, works ? EXPERTD_ERR_OK : EXPERTD_ERR_PERMISSION);
    if (works) {
        assert_true(id == r->offer.id);
        r->redeemed = true;
        close(fd);
    }
}

static void model_pin(struct model *m, struct modelled *r) {
    struct region *region;
    uint8_t *data;
    err_t e = region_pin(m->registry, r->offer.id, 0, r->bytes, &region, &data);
    assert_int_equal(e.code, r->open ? EXPERTD_ERR_OK : EXPERTD_ERR_REGION_UNKNOWN);
    if (r->open) {
        assert_true(r->pins == 0 || (region == r->pinned && data == r->data));
        r->pinned = region;
        r->data = data;
        r->pins++;
        data[0] = r->mark = (uint8_t)draw(m, 256);
        data[r->bytes - 1] = r->mark;
    }
}

static void model_unpin(struct model *m, struct modelled *r) {
    if (r->pins > 0) {
        assert_int_equal(r->data[0], r->mark); // pinned memory is valid, closed or not
        r->pins--;
        region_unpin(m->registry, r->pinned);
    }
}

static void model_close(struct model *m, struct modelled *r) {
    assert_int_equal(region_close(m->registry, r->offer.id).code, r->open ? EXPERTD_ERR_OK : EXPERTD_ERR_REGION_UNKNOWN);
    r->open = false;
}

static void model_expire(struct model *m) {
    int64_t next_ns = CLOCK_NEVER;
    m->now_ns += draw(m, 4) * NS_PER_S;
    for (int i = 0; i < MAX_REGIONS; i++) {
        struct modelled *r = &m->regions[i];
        int64_t end_ns = r->offered_ns + REGION_OFFER_NS;
        if (r->open && !r->redeemed && end_ns <= m->now_ns) {
            r->open = false;
        } else if (r->open && !r->redeemed && end_ns < next_ns) {
            next_ns = end_ns;
        }
    }
    assert_true(region_expire(m->registry, m->now_ns) == next_ns);
}

static void model_check(const struct model *m) {
    struct region_counts counts = region_counts(m->registry);
    uint32_t open = 0, held = 0;
    uint64_t bytes = 0;
    for (int i = 0; i < MAX_REGIONS; i++) {
        const struct modelled *r = &m->regions[i];
        assert_int_equal(region_is_open(m->registry, r->offer.id), r->open);
        open += r->open;
        held += is_held(r);
        bytes += is_held(r) ? r->bytes : 0;
    }
    assert_int_equal(counts.open, open);
    assert_int_equal(counts.held, held);
    assert_true(counts.bytes == bytes);
}

static void every_order_of_events_matches_the_model(void **state) {
    (void)state;
    int descriptors = open_descriptors();
    struct model m = {.registry = make_registry(), .seed = 11};
    for (int step = 0; step < 20000; step++) {
        struct modelled *r = &m.regions[draw(&m, MAX_REGIONS)];
        switch (draw(&m, 8)) {
        case 0:
        case 1:
            model_offer(&m, r);
            break;
        case 2:
            model_redeem(&m, r);
            break;
        case 3:
        case 4:
            model_pin(&m, r);
            break;
        case 5:
            model_unpin(&m, r);
            break;
        case 6:
            model_close(&m, r);
            break;
        default:
            model_expire(&m);
        }
        model_check(&m);
    }
    for (int i = 0; i < MAX_REGIONS; i++) {
        while (m.regions[i].pins > 0) {
            model_unpin(&m, &m.regions[i]);
        }
    }
    region_registry_destroy(m.registry);
    assert_int_equal(open_descriptors(), descriptors);
}

// ---- from several threads

static void *live(void *context) {
    struct region_registry *registry = context;
    for (int round = 0; round < 300; round++) {
        struct region_offer offer;
        struct region *region;
        uint8_t *data;
        uint64_t id;
        int fd;
        if (err_is(region_offer(registry, "unix:1", PAGE, clock_now_ns(), &offer))) {
            continue; // the registry is full
        }
        if (round % 3 > 0) {
            assert_ok(region_redeem(registry, offer.token, clock_now_ns(), &id, &fd));
            close(fd);
        }
        assert_ok(region_pin(registry, offer.id, 0, PAGE, &region, &data));
        data[0] = (uint8_t)round;
        region_expire(registry, clock_now_ns());
        assert_ok(region_close(registry, offer.id));
        assert_int_equal(data[0], (uint8_t)round);
        region_unpin(registry, region);
    }
    return NULL;
}

static void threads_share_a_registry(void **state) {
    (void)state;
    struct region_registry *registry = make_registry();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, live, registry), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    struct region_counts counts = region_counts(registry);
    assert_int_equal(counts.open, 0);
    assert_int_equal(counts.held, 0);
    assert_true(counts.bytes == 0);
    region_registry_destroy(registry);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_descriptor_is_the_same_memory_and_sealed),
        cmocka_unit_test(extents_must_be_within_their_region),
        cmocka_unit_test(sizes_and_numbers_are_bounded),
        cmocka_unit_test(no_peer_takes_all_regions),
        cmocka_unit_test(a_token_works_once_and_in_time),
        cmocka_unit_test(offers_and_closes_call_the_watcher),
        cmocka_unit_test(every_order_of_events_matches_the_model),
        cmocka_unit_test(threads_share_a_registry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
