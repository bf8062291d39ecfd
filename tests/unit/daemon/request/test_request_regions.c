// Tests the shared memory of a request: views, copies, release.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "daemon/request/request_regions.h"

enum { BYTES = 4096 };

struct fixture {
    struct region_registry *registry;
    uint64_t id;
    struct region *pin;
    uint8_t *memory;
};

static void assert_ok(err_t e) {
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
}

static struct fixture begin(void) {
    struct fixture f;
    struct region_offer offer;
    assert_ok(region_registry_create(&(struct region_limits){BYTES, 1, 1}, &f.registry));
    assert_ok(region_offer(f.registry, "unix:1", BYTES, 0, &offer));
    f.id = offer.id;
    assert_ok(region_pin(f.registry, f.id, 0, BYTES, &f.pin, &f.memory));
    return f;
}

static void end(struct fixture *f) {
    region_unpin(f->registry, f->pin);
    region_registry_destroy(f->registry); // aborts if a pin is left
}

static struct wire_tensor tensor_at(uint64_t id, uint64_t offset, uint64_t length) {
    return (struct wire_tensor){.present = true,
                                .view = {.dtype = EXPERTD_DTYPE_I32, .rank = 1, .shape = {length / 4}},
                                .has_extent = true,
                                .extent = {id, offset, length}};
}

static void a_view_changes_with_the_region_and_a_copy_does_not(void **state) {
    (void)state;
    struct fixture f = begin();
    struct request_regions regions = {0};
    struct wire_tensor tensor = tensor_at(f.id, 64, 8);
    struct expertd_tensor_view view, copy;
    f.memory[64] = 1;
    assert_ok(request_regions_view(&regions, f.registry, &tensor, "hidden", &view));
    assert_ok(request_regions_copy(&regions, f.registry, &tensor, "routes.ids", 8, &copy));
    f.memory[64] = 2;
    assert_int_equal(*(const uint8_t *)view.data, 2);
    assert_int_equal(*(const uint8_t *)copy.data, 1);
    assert_int_equal(view.bytes, 8);
    assert_int_equal(copy.bytes, 8);
    assert_int_equal(copy.dtype, EXPERTD_DTYPE_I32);
    assert_int_equal(regions.copied_bytes, 8);
    assert_ok(region_close(f.registry, f.id));
    assert_int_equal(*(const uint8_t *)view.data, 2);
    request_regions_release(&regions, f.registry);
    request_regions_release(&regions, f.registry);
    end(&f);
}

static void data_in_the_message_needs_no_region(void **state) {
    (void)state;
    struct request_regions regions = {0};
    struct wire_tensor tensor = {.present = true,
                                 .view = {.dtype = EXPERTD_DTYPE_F32, .rank = 1, .shape = {1}, .data = "1234", .bytes = 4}};
    struct expertd_tensor_view view;
    assert_ok(request_regions_view(&regions, NULL, &tensor, "hidden", &view));
    assert_ptr_equal(view.data, tensor.view.data);
    assert_ok(request_regions_copy(&regions, NULL, &tensor, "hidden", 0, &view));
    assert_ptr_equal(view.data, tensor.view.data);
    request_regions_release(&regions, NULL);
}

static void errors_name_the_extent(void **state) {
    (void)state;
    struct fixture f = begin();
    struct request_regions regions = {0};
    struct expertd_tensor_view view;
    struct wire_tensor unknown = tensor_at(f.id + 1, 0, 8), past = tensor_at(f.id, BYTES, 8), good = tensor_at(f.id, 0, 64);
    assert_int_equal(request_regions_view(&regions, f.registry, &unknown, "hidden", &view).code, EXPERTD_ERR_REGION_UNKNOWN);
    assert_string_equal(expertd_err_field(), "hidden.extent");
    assert_int_equal(request_regions_copy(&regions, f.registry, &past, "routes.ids", 8, &view).code, EXPERTD_ERR_TENSOR_BYTES);
    assert_string_equal(expertd_err_field(), "routes.ids.extent");
    assert_int_equal(request_regions_view(&regions, NULL, &good, "hidden", &view).code, EXPERTD_ERR_REGION_UNKNOWN);
    assert_int_equal(request_regions_copy(&regions, f.registry, &good, "routes.ids", 63, &view).code, EXPERTD_ERR_TOO_LARGE);
    assert_string_equal(expertd_err_field(), "routes.ids");
    assert_int_equal(request_regions_output(&regions, f.registry, &past.extent, 8).code, EXPERTD_ERR_TENSOR_BYTES);
    assert_string_equal(expertd_err_field(), "output");
    assert_int_equal(request_regions_output(&regions, f.registry, &good.extent, 60).code, EXPERTD_ERR_TENSOR_BYTES);
    assert_string_equal(expertd_err_field(), "output.length");
    request_regions_release(&regions, f.registry);
    end(&f);
}

static void the_largest_request_fits(void **state) {
    (void)state;
    struct fixture f = begin();
    struct request_regions regions = {0};
    struct wire_tensor tensor = tensor_at(f.id, 0, 64);
    struct expertd_tensor_view view;
    assert_ok(request_regions_view(&regions, f.registry, &tensor, "hidden", &view));
    assert_ok(request_regions_copy(&regions, f.registry, &tensor, "hidden_scale", 64, &view));
    assert_ok(request_regions_copy(&regions, f.registry, &tensor, "routes.ids", 64, &view));
    assert_ok(request_regions_copy(&regions, f.registry, &tensor, "routes.weights", 64, &view));
    assert_ok(request_regions_output(&regions, f.registry, &tensor.extent, 64));
    assert_ptr_equal(regions.output, f.memory);
    assert_int_equal(regions.copied_bytes, 192);
    request_regions_release(&regions, f.registry);
    assert_null(regions.output);
    end(&f);
}

static void an_empty_tensor_is_copied(void **state) {
    (void)state;
    struct fixture f = begin();
    struct request_regions regions = {0};
    struct wire_tensor tensor = tensor_at(f.id, BYTES, 0);
    struct expertd_tensor_view view;
    assert_ok(request_regions_copy(&regions, f.registry, &tensor, "routes.ids", 0, &view));
    assert_int_equal(view.bytes, 0);
    assert_ok(request_regions_output(&regions, f.registry, &tensor.extent, 0));
    request_regions_release(&regions, f.registry);
    end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_view_changes_with_the_region_and_a_copy_does_not),
        cmocka_unit_test(data_in_the_message_needs_no_region),
        cmocka_unit_test(errors_name_the_extent),
        cmocka_unit_test(the_largest_request_fits),
        cmocka_unit_test(an_empty_tensor_is_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
