#include "kernels/plain/product_operation.h"

#include "base/sizes.h"
#include "kernels/cpu/common/float_mode.h"
#include "kernels/products/matmul_check.h"
#include "kernels/reference/product_reference.h"

static size_t list_bytes(size_t num_groups) {
    return aligned(size_times(num_groups, sizeof(struct product_group)));
}

static void list_groups(const struct product *product, const struct product_source *source, struct product_group *groups) {
    for (size_t g = 0; g < product->num_groups; g++) {
        groups[g] = source->next(source->context);
    }
}

size_t product_operation_bytes(const struct product *product, const struct product_limits *limits,
                               const struct expertd_team *team) {
    return size_plus(list_bytes(product->num_groups),
                     product_workspace_bytes(product, limits, product->num_groups, expertd_team_threads(team)));
}

FALLIBLE product_operation_run(const struct product *product, const struct product_limits *limits,
                               const struct product_source *source, struct expertd_team *team, void *workspace) {
    bool interpret = product->options->interpret;
    size_t needed = product_operation_bytes(product, limits, team);
    TRY(matmul_check_given(product->options, needed));
    TRY(matmul_check_workspace(workspace, interpret ? 0 : needed));
    if (interpret) {
        product_operation_reference(product, source);
        return OK;
    }
    struct product listed = *product;
    list_groups(product, source, workspace);
    listed.groups = workspace;
    product_run(&listed, limits, team, (char *)workspace + list_bytes(product->num_groups));
    return OK;
}

void product_operation_reference(const struct product *product, const struct product_source *source) {
    float_mode before = float_mode_set_ieee();
    for (size_t g = 0; g < product->num_groups; g++) {
        struct product_group group = source->next(source->context);
        struct product one = *product;
        one.groups = &group;
        one.num_groups = 1;
        product_reference(&one);
    }
    float_mode_restore(before);
}

void product_operation_list(const struct product *product, const struct product_source *source, struct product_group *groups,
                            struct product *out) {
    list_groups(product, source, groups);
    *out = *product;
    out->groups = groups;
    out->options = NULL;
}
