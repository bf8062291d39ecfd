// Routing against the models' formulas in double precision; and the rules for ties, NaN, groups and the order of sums.
#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/routing.h"

enum { EXPERTS_MAX = 64, TOP_K_MAX = 8 };

struct routed {
    int32_t ids[TOP_K_MAX];
    float weights[TOP_K_MAX];
};

static struct expertd_routing routing_default(uint32_t experts, uint32_t top_k) {
    return (struct expertd_routing){.num_experts = experts, .top_k = top_k, .scale = 1};
}

static struct routed route(const struct expertd_routing *routing, const float *logits) {
    struct routed out;
    assert_false(err_is(expertd_routing_check(routing)));
    void *scratch = test_alloc(expertd_routing_scratch_bytes(routing));
    float *copy = test_alloc(routing->num_experts * sizeof *copy); // of exactly this size, so that sanitizers see reads beyond it
    memcpy(copy, logits, routing->num_experts * sizeof *copy);
    expertd_routing_row(routing, copy, out.ids, out.weights, scratch);
    assert_memory_equal(copy, logits, routing->num_experts * sizeof *copy);
    free(scratch), free(copy);
    return out;
}

static void assert_ids(const struct routed *routed, const int32_t *ids, size_t count) {
    for (size_t j = 0; j < count; j++) {
        assert_int_equal(routed->ids[j], ids[j]);
    }
}

// The formulas in double.
struct formula {
    double scores[EXPERTS_MAX], selecting[EXPERTS_MAX];
    int masked[EXPERTS_MAX];
    bool undecided; // fp32 rounding could change the order of the candidates
};

static void softmax(const double *x, size_t count, double *out) {
    double greatest = -INFINITY, sum = 0;
    for (size_t i = 0; i < count; i++) {
        greatest = fmax(greatest, x[i]);
    }
    for (size_t i = 0; i < count; i++) {
        sum += exp(x[i] - greatest);
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = exp(x[i] - greatest) / sum;
    }
}

static void scores(enum expertd_routing_score score, const double *x, size_t count, double *out) {
    if (score == EXPERTD_SCORE_SOFTMAX) {
        softmax(x, count, out);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = score == EXPERTD_SCORE_SIGMOID ? 1 / (1 + exp(-x[i])) : sqrt(log1p(exp(x[i])));
    }
}

// Are two values so close that fp32 rounding could order them otherwise? Masked values are 0 in both.
static bool is_near(double a, double b) {
    return (a != 0 || b != 0) && fabs(a - b) <= 1e-5 * fmax(fabs(a), fabs(b));
}

static int best_of(struct formula *f, size_t count) {
    int best = -1;
    for (size_t e = 0; e < count; e++) {
        if (!f->masked[e] && (best < 0 || f->selecting[e] > f->selecting[best])) {
            best = (int)e;
        }
    }
    for (size_t e = 0; e < count; e++) {
        f->undecided |= (int)e != best && !f->masked[e] && is_near(f->selecting[e], f->selecting[best]);
    }
    return best;
}

static double group_value(const struct expertd_routing *r, const struct formula *f, size_t group) {
    size_t length = r->num_experts / r->num_groups;
    double first = -INFINITY, second = -INFINITY;
    for (size_t e = group * length; e < (group + 1) * length; e++) {
        if (f->selecting[e] > first) {
            second = first, first = f->selecting[e];
        } else {
            second = fmax(second, f->selecting[e]);
        }
    }
    return r->group_score == EXPERTD_GROUP_MAX ? first : first + second;
}

static void mask_groups(const struct expertd_routing *r, struct formula *f) {
    size_t length = r->num_experts / r->num_groups;
    for (size_t g = 0; g < r->num_groups; g++) {
        size_t better = 0;
        for (size_t other = 0; other < r->num_groups; other++) {
            f->undecided |= other != g && is_near(group_value(r, f, other), group_value(r, f, g));
            better += group_value(r, f, other) > group_value(r, f, g);
        }
        for (size_t e = g * length; better >= r->top_groups && e < (g + 1) * length; e++) {
            f->masked[e] = 1;
        }
    }
    for (size_t e = 0; r->masked_groups_are_zero && e < r->num_experts; e++) {
        f->selecting[e] = f->masked[e] ? 0 : f->selecting[e];
        f->masked[e] = 0;
    }
}

// False where rounding decides the choice.
static bool expected(const struct expertd_routing *r, const float *logits, int *ids, double *weights) {
    struct formula f = {0};
    double x[EXPERTS_MAX] = {0}, sum = 0;
    for (size_t e = 0; e < r->num_experts; e++) {
        double cap = (double)r->softcap, logit = (double)logits[e];
        x[e] = cap > 0 ? cap * tanh(logit / cap) : logit;
    }
    scores(r->score, x, r->num_experts, f.scores);
    for (size_t e = 0; e < r->num_experts; e++) {
        f.selecting[e] =
            (r->order == EXPERTD_ORDER_SCORE_TOPK ? f.scores[e] : x[e]) + (r->selection_bias ? (double)r->selection_bias[e] : 0);
    }
    if (r->num_groups > 1) {
        mask_groups(r, &f);
    }
    for (size_t j = 0; j < r->top_k; j++) {
        ids[j] = best_of(&f, r->num_experts);
        f.masked[ids[j]] = 1;
        weights[j] = r->order == EXPERTD_ORDER_SCORE_TOPK ? f.scores[ids[j]] : x[ids[j]];
    }
    if (r->order == EXPERTD_ORDER_TOPK_SCORE) {
        scores(r->score, weights, r->top_k, weights);
    }
    for (size_t j = 0; j < r->top_k; j++) {
        sum += r->norm == EXPERTD_NORM_P && r->norm_p == 2 ? weights[j] * weights[j] : weights[j];
    }
    double norm = r->norm == EXPERTD_NORM_SUM       ? sum + (double)r->norm_epsilon
                  : r->norm == EXPERTD_NORM_SUM_MAX ? fmax(sum, (double)r->norm_epsilon)
                  : r->norm == EXPERTD_NORM_P       ? (r->norm_p == 2 ? sqrt(sum) : sum)
                                                    : 1;
    for (size_t j = 0; j < r->top_k; j++) {
        weights[j] = weights[j] / norm * (double)r->scale * (r->expert_scale ? (double)r->expert_scale[ids[j]] : 1);
    }
    return !f.undecided;
}

// Distinct logits, at least 0.001 apart.
static void distinct_logits(struct random *random, float *logits, size_t count) {
    for (size_t e = 0; e < count; e++) {
        logits[e] = ((float)e - (float)count / 2) * 0.11f + (float)random_below(random, 50) * 0.001f;
    }
    for (size_t e = count; e > 1; e--) {
        size_t other = random_below(random, (uint32_t)e);
        float swapped = logits[e - 1];
        logits[e - 1] = logits[other];
        logits[other] = swapped;
    }
}

// At least some cases must be decided.
static bool check_formula(struct random *random, const struct expertd_routing *r) {
    float logits[EXPERTS_MAX] = {0};
    distinct_logits(random, logits, r->num_experts);
    int ids[TOP_K_MAX] = {0};
    double weights[TOP_K_MAX] = {0};
    if (!expected(r, logits, ids, weights)) {
        return false;
    }
    struct routed got = route(r, logits);
    for (size_t j = 0; j < r->top_k; j++) {
        assert_int_equal(got.ids[j], ids[j]);
        assert_true(fabs((double)got.weights[j] - weights[j]) <= 3e-6 * fabs(weights[j]));
    }
    return true;
}

static void choices_and_weights_are_those_of_the_formulas(void **state) {
    (void)state;
    float bias[EXPERTS_MAX], expert_scale[EXPERTS_MAX];
    struct random random = {3};
    int checked = 0;
    for (int i = 0; i < 4000; i++) {
        uint32_t experts = 8u << random_below(&random, 4);
        struct expertd_routing r = routing_default(experts, 1 + random_below(&random, 4));
        r.score = (enum expertd_routing_score)random_below(&random, 3);
        r.order = (enum expertd_routing_order)random_below(&random, 2);
        r.norm = (enum expertd_routing_norm)random_below(&random, 4);
        r.norm_epsilon = random_below(&random, 2) ? 1e-20f : 1e-6f;
        r.norm_p = (float)(1 + random_below(&random, 2));
        r.scale = random_below(&random, 2) ? 1 : 2.5f;
        r.num_groups = random_below(&random, 2) ? 4 : 0;
        r.top_groups = 2 + random_below(&random, 2);
        r.group_score = (enum expertd_routing_group_score)random_below(&random, 2);
        for (size_t e = 0; e < r.num_experts; e++) {
            bias[e] = (float)random_below(&random, 1000) * 0.0003f - (i % 3 == 0 ? 0.9f : 0);
            expert_scale[e] = 0.5f + (float)random_below(&random, 1000) * 0.001f;
        }
        r.expert_scale = random_below(&random, 2) ? expert_scale : NULL;
        r.selection_bias = random_below(&random, 2) ? bias : NULL;
        r.masked_groups_are_zero = i % 2;
        checked += check_formula(&random, &r);
        r.softcap = 1 + (float)random_below(&random, 40) * 0.25f;
        checked += check_formula(&random, &r);
    }
    assert_in_range(checked, 7200, 8000);
}

// As in Laguna: the softcap applies to the logits, before bias and norm, and also with chosen ids.
static void logits_are_capped_before_they_are_scored(void **state) {
    (void)state;
    const float logits[4] = {6, -1, 40, 2}, bias[4] = {0, 0.9f, 0, 0};
    const int32_t ids[2] = {2, 1};
    struct expertd_routing r = {
        .score = EXPERTD_SCORE_SIGMOID, .norm = EXPERTD_NORM_SUM, .scale = 1, .num_experts = 4, .top_k = 2, .softcap = 2};
    double s[4], capped = 2 * tanh(20);
    for (int e = 0; e < 4; e++) {
        s[e] = 1 / (1 + exp(-2 * tanh((double)logits[e] / 2)));
    }
    assert_true(fabs(s[2] - 1 / (1 + exp(-capped))) < 1e-15);
    r.selection_bias = bias;
    struct routed got = route(&r, logits);
    assert_ids(&got, (int32_t[]){1, 2}, 2); // without the cap 2 would be the first, at 1
    assert_true(fabs((double)got.weights[0] - s[1] / (s[1] + s[2])) < 1e-6);
    _Alignas(64) char scratch[4096];
    float weights[2];
    assert_true(expertd_routing_scratch_bytes(&r) <= sizeof scratch);
    for (int order = 0; order < 2; order++) {
        r.order = (enum expertd_routing_order)order;
        expertd_routing_row_chosen(&r, logits, ids, weights, scratch);
        assert_true(fabs((double)weights[0] - s[2] / (s[1] + s[2])) < 1e-6);
    }
}

// As in A.X K2: masked values (0) come before negative ones, lowest id first; a chosen expert's weight is its own score.
static void masked_groups_that_are_zero_beat_negative_values(void **state) {
    (void)state;
    const float logits[6] = {0, 1, -1, 2, 0.5f, -2}, all_low[6] = {-3, -3, -3, -3, -3, -3};
    struct expertd_routing r = routing_default(6, 3);
    r.score = EXPERTD_SCORE_SIGMOID;
    r.num_groups = 3;
    r.top_groups = 2;
    r.group_score = EXPERTD_GROUP_TOP2_SUM;
    r.selection_bias = all_low;
    struct routed got = route(&r, logits); // groups are ranked by their sums
    assert_ids(&got, (int32_t[]){3, 1, 0}, 3);
    r.masked_groups_are_zero = 1;
    got = route(&r, logits);
    assert_ids(&got, (int32_t[]){4, 5, 3}, 3);
    assert_true(fabs((double)got.weights[1] - 1 / (1 + exp(2))) < 1e-6);
}

// As with a hash router: weights for given ids.
static void chosen_ids_get_the_weights_of_their_scores(void **state) {
    (void)state;
    const float logits[6] = {0.5f, -1, 2, 0, 1.5f, -0.25f};
    const int32_t ids[3] = {3, 0, 5}; // not the greatest scores
    struct expertd_routing r = {
        .score = EXPERTD_SCORE_SQRT_SOFTPLUS, .norm = EXPERTD_NORM_SUM, .scale = 2.5f, .num_experts = 6, .top_k = 3};
    double sum = 0, wanted[3];
    for (int j = 0; j < 3; j++) {
        wanted[j] = sqrt(log1p(exp((double)logits[ids[j]])));
        sum += wanted[j];
    }
    _Alignas(64) char scratch[4096];
    float weights[3] = {NAN, NAN, NAN};
    assert_true(expertd_routing_scratch_bytes(&r) <= sizeof scratch);
    expertd_routing_row_chosen(&r, logits, ids, weights, scratch);
    for (int j = 0; j < 3; j++) {
        assert_true(fabs((double)weights[j] - wanted[j] / sum * 2.5) <= 1e-6);
    }
    for (int order = 0; order < 2; order++) { // for the ids that the router would choose, both functions give equal weights
        r.order = (enum expertd_routing_order)order;
        struct routed own = route(&r, logits);
        expertd_routing_row_chosen(&r, logits, own.ids, weights, scratch);
        assert_memory_equal(weights, own.weights, sizeof weights);
    }
}

static void ties_go_to_the_lowest_id(void **state) {
    (void)state;
    struct expertd_routing r = routing_default(6, 3);
    float same[6] = {1, 1, 1, 1, 1, 1}, pairs[6] = {0, 2, 1, 2, 1, 2};
    struct routed got = route(&r, same);
    assert_ids(&got, (int32_t[]){0, 1, 2}, 3);
    got = route(&r, pairs);
    assert_ids(&got, (int32_t[]){1, 3, 5}, 3);
    r.order = EXPERTD_ORDER_TOPK_SCORE;
    got = route(&r, pairs);
    assert_ids(&got, (int32_t[]){1, 3, 5}, 3);
}

static void scores_that_round_to_the_same_value_tie(void **state) {
    (void)state;
    struct expertd_routing r = routing_default(4, 2);
    r.score = EXPERTD_SCORE_SIGMOID;
    float saturated[4] = {20, 30, 40, 50}; // all 1 in fp32: selection is by score, not by logit
    struct routed got = route(&r, saturated);
    assert_ids(&got, (int32_t[]){0, 1}, 2);
}

static void zeros_of_either_sign_tie(void **state) {
    (void)state;
    struct expertd_routing r = routing_default(4, 3);
    r.order = EXPERTD_ORDER_TOPK_SCORE;
    float logits[4] = {-0.0f, 0.0f, -1, -0.0f};
    struct routed got = route(&r, logits);
    assert_ids(&got, (int32_t[]){0, 1, 3}, 3);
}

static void nan_ranks_below_minus_infinity(void **state) {
    (void)state;
    struct expertd_routing r = routing_default(5, 4);
    r.order = EXPERTD_ORDER_TOPK_SCORE;
    r.score = EXPERTD_SCORE_SIGMOID;
    float logits[5] = {NAN, -INFINITY, 3, -NAN, INFINITY};
    struct routed got = route(&r, logits);
    assert_ids(&got, (int32_t[]){4, 2, 1, 0}, 4);
    assert_true(got.weights[0] == 1 && got.weights[2] == 0 && isnan(got.weights[3]));
    r.order = EXPERTD_ORDER_SCORE_TOPK; // with sigmoid, NaN does not affect other scores
    got = route(&r, logits);
    assert_ids(&got, (int32_t[]){4, 2, 1, 0}, 4);
}

static void softmax_with_nan_or_infinity_chooses_the_lowest_ids(void **state) {
    (void)state;
    struct expertd_routing r = routing_default(4, 2);
    float rows[3][4] = {{1, NAN, 2, 3}, {1, INFINITY, 2, 3}, {-INFINITY, -INFINITY, -INFINITY, -INFINITY}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct routed got = route(&r, rows[i]);
        assert_ids(&got, (int32_t[]){0, 1}, 2); // all scores equal: the lowest ids
        assert_true(isnan(got.weights[0]) && isnan(got.weights[1]));
    }
}

static void bias_selects_but_does_not_weigh(void **state) {
    (void)state;
    float bias[4] = {0, 0, 10, 0}, logits[4] = {1, 0.5f, -3, 0};
    struct expertd_routing r = routing_default(4, 2);
    r.score = EXPERTD_SCORE_SIGMOID;
    r.selection_bias = bias;
    struct routed got = route(&r, logits);
    assert_ids(&got, (int32_t[]){2, 0}, 2);
    assert_true(fabsf(got.weights[0] - 0.04742587f) < 1e-7f);
}

static void masked_groups_are_never_chosen(void **state) {
    (void)state;
    float logits[8] = {5, -50, 4, -50, 3, 3, 2, 2};
    struct expertd_routing r = routing_default(8, 4);
    r.score = EXPERTD_SCORE_SIGMOID;
    r.num_groups = 4, r.top_groups = 2, r.group_score = EXPERTD_GROUP_TOP2_SUM;
    // groups score about 1, 1, 1.9, 1.8: the last two are selected, although the first two have greater single experts
    struct routed got = route(&r, logits);
    assert_ids(&got, (int32_t[]){4, 5, 6, 7}, 4);
    // all values are negative: masking with 0 would select masked experts
    float low[8] = {-50, -50, -50, -50, 3, 3, 2, 2};
    float all_low[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    r.selection_bias = all_low;
    got = route(&r, low);
    assert_ids(&got, (int32_t[]){4, 5, 6, 7}, 4);
}

static void groups_tie_to_the_lowest_and_rank_nan_last(void **state) {
    (void)state;
    struct expertd_routing r = routing_default(8, 2);
    r.score = EXPERTD_SCORE_SIGMOID;
    r.num_groups = 4, r.top_groups = 1, r.group_score = EXPERTD_GROUP_TOP2_SUM;
    float same[8] = {0};
    struct routed got = route(&r, same);
    assert_ids(&got, (int32_t[]){0, 1}, 2);
    float nan_in_first[8] = {NAN, 9, 0, 0, 0, 0, 0, 0}; // greatest + second of the first group is NaN
    got = route(&r, nan_in_first);
    assert_ids(&got, (int32_t[]){2, 3}, 2);
    r.group_score = EXPERTD_GROUP_MAX;
    got = route(&r, nan_in_first);
    assert_ids(&got, (int32_t[]){1, 0}, 2);
}

static double sparsemixer_weight(const float *logits, size_t count, size_t chosen, size_t taken, double jitter) {
    double sum = 0, greatest = (double)logits[chosen];
    for (size_t e = 0; e < count; e++) {
        double l = (double)logits[e];
        if (e != taken && (greatest - l) / fmax(fabs(l), greatest) <= 2 * jitter) {
            sum += exp(l - greatest);
        }
    }
    return 1 / sum;
}

static void sparsemixer_makes_two_asymmetric_choices(void **state) {
    (void)state;
    struct expertd_routing r = routing_default(6, 2);
    r.score = EXPERTD_SCORE_SPARSEMIXER;
    r.jitter = 0.01f;
    float rows[3][6] = {{1, 2, 2.01f, 0.5f, 1.99f, -3}, {5, 4.95f, 4.9f, 1, 0, 0}, {-1, -1.005f, -5, -0.99f, -2, -1.02f}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        size_t first = 0, second;
        for (size_t e = 1; e < 6; e++) {
            first = rows[i][e] > rows[i][first] ? e : first;
        }
        second = first == 0;
        for (size_t e = 0; e < 6; e++) {
            second = e != first && rows[i][e] > rows[i][second] ? e : second;
        }
        struct routed got = route(&r, rows[i]);
        assert_ids(&got, (int32_t[]){(int32_t)first, (int32_t)second}, 2);
        assert_true(fabs((double)got.weights[0] - sparsemixer_weight(rows[i], 6, first, 6, 0.01)) < 1e-6);
        assert_true(fabs((double)got.weights[1] - sparsemixer_weight(rows[i], 6, second, first, 0.01)) < 1e-6);
    }
    float lost[6] = {NAN, NAN, NAN, NAN, NAN, NAN};
    struct routed got = route(&r, lost);
    assert_ids(&got, (int32_t[]){0, 1}, 2); // two experts even then
}

static void weights_are_summed_in_the_order_of_the_choices(void **state) {
    (void)state;
    struct expertd_routing r = routing_default(4, 3);
    r.score = EXPERTD_SCORE_SIGMOID;
    r.norm = EXPERTD_NORM_SUM;
    float bias[4] = {0, 3, 2, 1}, logits[4] = {0, -17.5f, 3, -17.4f}; // the chosen weights are tiny, large, tiny
    r.selection_bias = bias;
    struct routed got = route(&r, logits);
    assert_ids(&got, (int32_t[]){1, 2, 3}, 3);
    struct expertd_routing plain = r;
    plain.norm = EXPERTD_NORM_NONE;
    struct routed raw = route(&plain, logits);
    float sum = ((0.0f + raw.weights[0]) + raw.weights[1]) + raw.weights[2];
    for (size_t j = 0; j < 3; j++) {
        assert_true(same_f32(got.weights[j], raw.weights[j] / (sum + 0.0f)));
    }
}

enum { ALIKE_ROWS = 300 };

static void route_seeded(struct routed out[ALIKE_ROWS]) {
    struct random random = {17};
    for (int i = 0; i < ALIKE_ROWS; i++) {
        struct expertd_routing r = routing_default(64, 8);
        r.score = (enum expertd_routing_score)(i % 3);
        r.norm = EXPERTD_NORM_SUM;
        r.softcap = i % 2 ? 3.5f : 0;
        float logits[64];
        for (size_t e = 0; e < 64; e++) {
            logits[e] = random_f32(&random, i % 10 ? VALUES_PLAIN : VALUES_ANY);
        }
        out[i] = route(&r, logits);
    }
}

static struct routed scalar_rows[ALIKE_ROWS];

static void check_alike(const struct kernel_backend *backend) {
    static struct routed rows[ALIKE_ROWS];
    assert_false(err_is(expertd_kernel_select(backend->name)));
    route_seeded(rows);
    for (size_t i = 0; i < ALIKE_ROWS; i++) {
        assert_memory_equal(rows[i].ids, scalar_rows[i].ids, sizeof rows[i].ids);
        assert_same_f32(rows[i].weights, scalar_rows[i].weights, 8, backend->name);
    }
}

static void every_backend_routes_alike(void **state) {
    (void)state;
    assert_false(err_is(expertd_kernel_select("scalar")));
    route_seeded(scalar_rows);
    for_each_backend(check_alike);
    assert_false(err_is(expertd_kernel_select("auto")));
}

static void refuse(struct expertd_routing r, const char *said) {
    assert_int_equal(expertd_routing_check(&r).code, EXPERTD_ERR_CHECKPOINT);
    assert_non_null(strstr(expertd_err_message(), said));
}

static void impossible_parameters_are_refused(void **state) {
    (void)state;
    struct expertd_routing good = routing_default(16, 4), r;
    assert_false(err_is(expertd_routing_check(&good)));
    r = good, r.num_experts = 0, refuse(r, "0 experts");
    r = good, r.num_experts = 1u << 31, refuse(r, "2147483648");
    r = good, r.top_k = 0, refuse(r, "chooses 0");
    r = good, r.top_k = 17, refuse(r, "has 16");
    r = good, r.num_experts = 4096, r.top_k = 4000, refuse(r, "4000");
    r = good, r.num_groups = 5, r.top_groups = 2, refuse(r, "divide");
    r = good, r.num_groups = 8, r.top_groups = 0, refuse(r, "0 expert groups");
    r = good, r.num_groups = 8, r.top_groups = 9, refuse(r, "9 expert groups");
    r = good, r.num_groups = 8, r.top_groups = 1, refuse(r, "fewer than the 4");
    r = good, r.num_groups = 16, r.top_groups = 8, r.group_score = EXPERTD_GROUP_TOP2_SUM, refuse(r, "two best");
    r = good, r.norm = EXPERTD_NORM_P, r.norm_p = 3, refuse(r, "3-norm");
    r = good, r.norm = EXPERTD_NORM_SUM, r.norm_epsilon = NAN, refuse(r, "epsilon");
    r = good, r.scale = INFINITY, refuse(r, "scale");
    r = good, r.softcap = -1, refuse(r, "softcap is -1");
    r = good, r.softcap = NAN, refuse(r, "softcap is nan");
    r = good, r.softcap = INFINITY, refuse(r, "softcap is inf");
    r = good, r.score = EXPERTD_SCORE_SPARSEMIXER, refuse(r, "2 choices");
    r.top_k = 2, r.jitter = -1, refuse(r, "jitter");
    r.jitter = 0.01f, r.num_groups = 2, r.top_groups = 2, refuse(r, "sparsemixer");
    r.num_groups = 0, r.softcap = 1, refuse(r, "no softcap");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_and_weights_are_those_of_the_formulas),
        cmocka_unit_test(logits_are_capped_before_they_are_scored),
        cmocka_unit_test(masked_groups_that_are_zero_beat_negative_values),
        cmocka_unit_test(chosen_ids_get_the_weights_of_their_scores),
        cmocka_unit_test(ties_go_to_the_lowest_id),
        cmocka_unit_test(scores_that_round_to_the_same_value_tie),
        cmocka_unit_test(zeros_of_either_sign_tie),
        cmocka_unit_test(nan_ranks_below_minus_infinity),
        cmocka_unit_test(softmax_with_nan_or_infinity_chooses_the_lowest_ids),
        cmocka_unit_test(bias_selects_but_does_not_weigh),
        cmocka_unit_test(masked_groups_are_never_chosen),
        cmocka_unit_test(groups_tie_to_the_lowest_and_rank_nan_last),
        cmocka_unit_test(sparsemixer_makes_two_asymmetric_choices),
        cmocka_unit_test(weights_are_summed_in_the_order_of_the_choices),
        cmocka_unit_test(every_backend_routes_alike),
        cmocka_unit_test(impossible_parameters_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
