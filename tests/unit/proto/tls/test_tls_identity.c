// Tests the patterns of allowed identities: what they match, what they must not match, and hostile names.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/tls/tls_identity.h"

static bool dns(const char *patterns, const char *name) {
    return tls_identity_matches(patterns, &(struct tls_name){TLS_NAME_DNS, name, strlen(name)});
}

static bool uri(const char *patterns, const char *name) {
    return tls_identity_matches(patterns, &(struct tls_name){TLS_NAME_URI, name, strlen(name)});
}

static void a_dns_name_matches_without_case(void **state) {
    (void)state;
    assert_true(dns("front.example", "front.example"));
    assert_true(dns("Front.Example", "fRONT.eXAMPLE"));
    assert_true(dns("a.example,front.example,b.example", "front.example"));
    assert_true(dns("localhost", "localhost"));
    assert_false(dns("front.example", "front.example.org"));
    assert_false(dns("front.example", "xfront.example"));
    assert_false(dns("front.example", "front_example"));
    assert_false(dns("front.example", "front"));
    assert_false(dns("front.example", ""));
    assert_false(dns("front.example", "front.example."));
    assert_false(dns("front.example", ".front.example"));
}

static void a_dns_wildcard_covers_exactly_one_label(void **state) {
    (void)state;
    assert_true(dns("*.shards.example", "3.shards.example"));
    assert_true(dns("*.shards.example", "node-3_a.SHARDS.example"));
    assert_true(dns("a.*.example", "a.b.example"));
    assert_true(dns("*.*.example", "a.b.example"));
    assert_false(dns("*.shards.example", "shards.example"));
    assert_false(dns("*.shards.example", ".shards.example"));
    assert_false(dns("*.shards.example", "a.b.shards.example"));
    assert_false(dns("*.shards.example", "3.shards.example."));
    assert_false(dns("*.*.example", "a.example"));
    assert_false(dns("*.shards.example", "*.shards.example")); // a wildcard certificate is no identity
    assert_false(dns("a.shards.example", "*.shards.example"));
    assert_false(dns("*.shards.example", "a b.shards.example"));
}

static void a_uri_wildcard_covers_exactly_one_part_of_the_path(void **state) {
    (void)state;
    assert_true(uri("spiffe://example/shard/3", "spiffe://example/shard/3"));
    assert_true(uri("spiffe://Example/shard/3", "SPIFFE://eXAMPLE/shard/3"));
    assert_true(uri("spiffe://example/shard/*", "spiffe://example/shard/3"));
    assert_true(uri("spiffe://example/*/3", "spiffe://example/shard/3"));
    assert_true(uri("spiffe://example", "spiffe://example"));
    assert_false(uri("spiffe://example/shard/3", "spiffe://example/Shard/3"));
    assert_false(uri("spiffe://example/shard/*", "spiffe://example/shard"));
    assert_false(uri("spiffe://example/shard/*", "spiffe://example/shard/"));
    assert_false(uri("spiffe://example/shard/*", "spiffe://example/shard/3/4"));
    assert_false(uri("spiffe://example/shard/*", "spiffe://example/shard/3/"));
    assert_false(uri("spiffe://example/shard/*", "spiffe://example/shard//"));
    assert_false(uri("spiffe://example/*/3", "spiffe://example//3"));
    assert_false(uri("spiffe://example/shard/*", "spiffe://evil/shard/3"));
    assert_false(uri("spiffe://example/shard/*", "spiffe://example.evil/shard/3"));
    assert_false(uri("spiffe://example/shard/*", "https://example/shard/3"));
    assert_false(uri("spiffe://example", "spiffe://example/shard"));
    assert_false(uri("spiffe://example/a", "spiffe://example"));
}

static void a_wildcard_covers_no_character_with_a_meaning(void **state) {
    (void)state;
    assert_false(uri("spiffe://example/shard/*", "spiffe://example/shard/.."));
    assert_false(uri("spiffe://example/shard/*", "spiffe://example/shard/."));
    assert_false(uri("spiffe://example/shard/*", "spiffe://example/shard/3?x"));
    assert_false(uri("spiffe://example/shard/*", "spiffe://example/shard/3#x"));
    assert_false(uri("spiffe://example/shard/*", "spiffe://example/shard/a%2Fb"));
    assert_false(uri("spiffe://example/shard/*", "spiffe://example/shard/*"));
    assert_false(uri("spiffe://example/shard/*", "spiffe://example/shard/a,b"));
    assert_true(uri("spiffe://example/shard/*", "spiffe://example/shard/a..b~1"));
}

static void a_pattern_matches_names_of_its_own_kind(void **state) {
    (void)state;
    assert_false(uri("front.example", "front.example"));
    assert_false(dns("spiffe://example/shard/3", "spiffe://example/shard/3"));
    assert_true(dns("spiffe://example/shard/3,front.example", "front.example"));
    assert_true(uri("front.example,spiffe://example/shard/3", "spiffe://example/shard/3"));
}

// The bytes of a certificate's name are chosen by whoever requested it.
static void hostile_names_match_nothing(void **state) {
    (void)state;
    static const char WITH_NUL[] = "front.example\0.evil.org";
    struct tls_name name = {TLS_NAME_DNS, WITH_NUL, sizeof WITH_NUL - 1};
    assert_false(tls_identity_matches("front.example,*.evil.org,*.example", &name));
    name = (struct tls_name){TLS_NAME_DNS, "a\0b.example", 11};
    assert_false(tls_identity_matches("*.example", &name));
    name = (struct tls_name){TLS_NAME_URI, "spiffe://example/shard/a\0b", 26};
    assert_false(tls_identity_matches("spiffe://example/shard/*", &name));
    name = (struct tls_name){TLS_NAME_DNS, NULL, 0};
    assert_false(tls_identity_matches("front.example", &name));
    name = (struct tls_name){TLS_NAME_URI, "", 0};
    assert_false(tls_identity_matches("spiffe://example/shard/*", &name));
    char *many = malloc(1 << 20);
    memset(many, '.', 1 << 20);
    assert_false(tls_identity_matches("*.example", &(struct tls_name){TLS_NAME_DNS, many, 1 << 20}));
    memset(many, 'a', 1 << 20);
    memcpy(many + (1 << 20) - 8, (const char[8]){'.', 'e', 'x', 'a', 'm', 'p', 'l', 'e'}, 8);
    assert_false(tls_identity_matches("*.example", &(struct tls_name){TLS_NAME_DNS, many, 1 << 20}));
    snprintf(many, 1 << 20, "spiffe://example/shard/");
    many[23] = 'a';
    assert_false(tls_identity_matches("spiffe://example/shard/*", &(struct tls_name){TLS_NAME_URI, many, 1 << 20}));
    free(many);
}

// Names of up to four bytes over an alphabet of every byte with a meaning, against an independent matcher of the rule's text.
static bool expected_dns(const char *name, size_t length) { // the pattern *.b
    if (length < 3 || memcmp(name + length - 2, ".b", 2) != 0) {
        return false;
    }
    for (size_t i = 0; i + 2 < length; i++) {
        if (name[i] != 'a' && name[i] != 'b' && name[i] != '-') {
            return false;
        }
    }
    return true;
}

static void every_short_name_is_matched_as_the_rule_says(void **state) {
    (void)state;
    static const char BYTES[] = {'a', 'b', '.', '*', '-', '/', ',', '\0', '\xff'};
    enum { COUNT = sizeof BYTES };
    unsigned matched = 0;
    for (size_t length = 0; length <= 5; length++) {
        size_t total = 1;
        for (size_t i = 0; i < length; i++) {
            total *= COUNT;
        }
        for (size_t n = 0; n < total; n++) {
            char name[8];
            size_t rest = n;
            for (size_t i = 0; i < length; i++, rest /= COUNT) {
                name[i] = BYTES[rest % COUNT];
            }
            bool got = tls_identity_matches("*.b", &(struct tls_name){TLS_NAME_DNS, name, length});
            assert_int_equal(got, expected_dns(name, length));
            matched += got;
        }
    }
    assert_int_equal(matched, 3 + 9 + 27);
}

static void refuse(const char *patterns, const char *part) {
    err_t e = tls_identity_check(patterns, EXPERTD_ERR_CONFIG);
    if (e.code != EXPERTD_ERR_CONFIG || !strstr(expertd_err_message(), part)) {
        fail_msg("%s: %s", patterns, err_is(e) ? expertd_err_message() : "accepted");
    }
}

static void wrong_patterns_are_refused_with_the_form(void **state) {
    (void)state;
    refuse("", "empty identity");
    refuse("a.example,,b.example", "empty identity");
    refuse("a.example,", "ends with a comma");
    refuse(",a.example", "empty identity");
    refuse("*", "names nobody");
    refuse("*.*", "names nobody");
    refuse("shard-*.example", "one complete label");
    refuse("a..example", "is not an identity");
    refuse("a.example.", "is not an identity");
    refuse("a example", "is not an identity");
    refuse("a.example, b.example", "is not an identity");
    refuse("spiffe:/example/a", "is not an identity");
    refuse("spiffe:///a", "is not a URI pattern");
    refuse("spiffe://*/a", "no * in the host");
    refuse("*://example/a", "is not a URI pattern");
    refuse("spiffe://example/", "path part \"\"");
    refuse("spiffe://example//a", "path part \"\"");
    refuse("spiffe://example/a/", "path part \"\"");
    refuse("spiffe://example/a*", "path part \"a*\"");
    refuse("spiffe://example/..", "path part \"..\"");
    refuse("spiffe://example/a?b", "path part \"a?b\"");
    refuse("spiffe://example/a%20b", "no %");
    char long_label[80];
    memset(long_label, 'a', 64);
    strcpy(long_label + 64, ".example");
    refuse(long_label, "is not an identity");
}

static void accept(const char *patterns) {
    if (err_is(tls_identity_check(patterns, EXPERTD_ERR_CONFIG))) {
        fail_msg("%s", expertd_err_message());
    }
}

static void right_patterns_are_accepted(void **state) {
    (void)state;
    accept("a");
    accept("a.example");
    accept("*.example,a.*.example,spiffe://example/ns/*/sa/expertd,https://host:8443/a");
    accept("spiffe://example");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dns_name_matches_without_case),
        cmocka_unit_test(a_dns_wildcard_covers_exactly_one_label),
        cmocka_unit_test(a_uri_wildcard_covers_exactly_one_part_of_the_path),
        cmocka_unit_test(a_wildcard_covers_no_character_with_a_meaning),
        cmocka_unit_test(a_pattern_matches_names_of_its_own_kind),
        cmocka_unit_test(hostile_names_match_nothing),
        cmocka_unit_test(every_short_name_is_matched_as_the_rule_says),
        cmocka_unit_test(wrong_patterns_are_refused_with_the_form),
        cmocka_unit_test(right_patterns_are_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
