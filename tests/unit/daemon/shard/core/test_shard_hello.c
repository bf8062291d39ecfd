// Tests the comparison of hellos: each difference is named with both values and the remedy.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/shard/core/shard_hello.h"

static const struct shard_identity OURS = {
    .protocol = 1, .numerics_id = "1/bf16/cpu", .compute_dtype = "bf16", .model_digest = {0xab, 1}};
static const struct shard_hello_limits LIMITS = {.max_rows = 100, .max_hidden = 10};

static struct shard_front_hello usual(void) {
    return (struct shard_front_hello){
        .identity = OURS, .instance = 5, .version = "1", .max_batch_rows = 100, .max_batch_hidden = 10};
}

static void refused(const struct shard_front_hello *hello, enum expertd_err_code code, const char *const *words, size_t count) {
    err_t e = shard_hello_check(hello, &OURS, &LIMITS);
    assert_int_equal(e.code, code);
    for (size_t i = 0; i < count; i++) {
        if (!strstr(expertd_err_message(), words[i])) {
            fail_msg("\"%s\" does not name %s", expertd_err_message(), words[i]);
        }
    }
}
#define REFUSED(hello, code, ...)                                                                                                  \
    do {                                                                                                                           \
        const char *const words_[] = {__VA_ARGS__};                                                                                \
        refused((hello), (code), words_, sizeof words_ / sizeof *words_);                                                          \
    } while (0)

static void a_front_that_agrees_is_taken(void **state) {
    (void)state;
    struct shard_front_hello hello = usual();
    assert_false(err_is(shard_hello_check(&hello, &OURS, &LIMITS)));
    hello.max_batch_rows = hello.max_batch_hidden = 0; // not stated
    assert_false(err_is(shard_hello_check(&hello, &OURS, &LIMITS)));
}

static void each_difference_is_named_with_both_values(void **state) {
    (void)state;
    struct shard_front_hello hello = usual();
    hello.identity.protocol = 7;
    REFUSED(&hello, EXPERTD_ERR_INVALID, "version 7", "version 1", "install one version");
    hello = usual();
    hello.identity.numerics_id = "1/bf16/amx";
    REFUSED(&hello, EXPERTD_ERR_INVALID, "1/bf16/amx", "1/bf16/cpu", "--numerics portable");
    hello = usual();
    hello.identity.compute_dtype = "f32";
    REFUSED(&hello, EXPERTD_ERR_INVALID, "computes in f32", "this shard in bf16", "--compute-dtype");
    hello = usual();
    hello.identity.model_digest[15] = 0xff;
    REFUSED(&hello, EXPERTD_ERR_INVALID, "ab0100000000000000000000000000ff", "ab010000000000000000000000000000", "same checkpoint");
}

static void a_hello_that_cannot_be_served_is_refused(void **state) {
    (void)state;
    struct shard_front_hello hello = usual();
    hello.instance = 0;
    REFUSED(&hello, EXPERTD_ERR_INVALID, "no instance");
    hello = usual();
    hello.max_batch_rows = 101;
    REFUSED(&hello, EXPERTD_ERR_TOO_LARGE, "101 rows", "memory for 100 rows", "--max-batch-tokens");
    hello = usual();
    hello.max_batch_hidden = 11;
    REFUSED(&hello, EXPERTD_ERR_TOO_LARGE, "11 hidden rows");
}

static void long_texts_of_a_peer_are_cut(void **state) {
    (void)state;
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    struct shard_front_hello hello = usual();
    hello.identity.numerics_id = text;
    REFUSED(&hello, EXPERTD_ERR_INVALID, "--numerics portable");
    hello = usual();
    hello.identity.compute_dtype = text;
    REFUSED(&hello, EXPERTD_ERR_INVALID, "--compute-dtype");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_front_that_agrees_is_taken),
        cmocka_unit_test(each_difference_is_named_with_both_values),
        cmocka_unit_test(a_hello_that_cannot_be_served_is_refused),
        cmocka_unit_test(long_texts_of_a_peer_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
