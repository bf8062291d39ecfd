#include "client/expertctl/print/layer_ranges.h"

#include <stdio.h>
#include <string.h>

static bool same_text(const char *a, const char *b) {
    return strcmp(a ? a : "", b ? b : "") == 0;
}

// The layer's prefix with "*" in place of the layer's number.
static void prefix_pattern(const struct describe_layer *layer, char text[LAYER_PREFIX_TEXT_MAX]) {
    const char *prefix = layer->prefix ? layer->prefix : "";
    char number[LAYER_RANGE_TEXT_MAX];
    int length = snprintf(number, sizeof number, ".%u.", layer->layer);
    const char *at = strstr(prefix, number);
    if (at) {
        snprintf(text, LAYER_PREFIX_TEXT_MAX, "%.*s.*.%s", (int)(at - prefix), prefix, at + length);
    } else {
        snprintf(text, LAYER_PREFIX_TEXT_MAX, "%s", prefix);
    }
}

static bool same_prefix(const struct describe_layer *a, const struct describe_layer *b) {
    char a_text[LAYER_PREFIX_TEXT_MAX], b_text[LAYER_PREFIX_TEXT_MAX];
    prefix_pattern(a, a_text);
    prefix_pattern(b, b_text);
    return same_text(a_text, b_text);
}

static bool same_table_row(const struct describe_layer *a, const struct describe_layer *b) {
    return a->hidden_size == b->hidden_size && a->num_experts == b->num_experts && a->num_zero_experts == b->num_zero_experts &&
           a->top_k == b->top_k && a->has_router == b->has_router && a->has_shared_experts == b->has_shared_experts &&
           a->weights_on_input == b->weights_on_input && a->weight_dtype == b->weight_dtype && a->ready == b->ready &&
           a->needs_token_ids == b->needs_token_ids && a->needs_router_input == b->needs_router_input &&
           same_text(a->quantisation, b->quantisation) && same_text(a->shared_quantisation, b->shared_quantisation) &&
           same_text(a->numerics_id, b->numerics_id) && same_prefix(a, b);
}

struct layer_range layer_range_next(const struct describe_layer *layers, size_t count, size_t at) {
    struct layer_range range = {&layers[at], 1};
    while (at + range.count < count) {
        const struct describe_layer *last = &layers[at + range.count - 1], *next = last + 1;
        if (next->layer != last->layer + 1 || !same_table_row(last, next)) {
            break;
        }
        range.count++;
    }
    return range;
}

const char *layer_range_text(const struct layer_range *range, char text[LAYER_RANGE_TEXT_MAX]) {
    const struct describe_layer *last = range->first + range->count - 1;
    if (range->count == 1) {
        snprintf(text, LAYER_RANGE_TEXT_MAX, "%u", range->first->layer);
    } else {
        snprintf(text, LAYER_RANGE_TEXT_MAX, "%u-%u", range->first->layer, last->layer);
    }
    return text;
}

const char *layer_range_prefix(const struct layer_range *range, char text[LAYER_PREFIX_TEXT_MAX]) {
    if (range->count > 1) {
        prefix_pattern(range->first, text);
    } else {
        snprintf(text, LAYER_PREFIX_TEXT_MAX, "%s", range->first->prefix ? range->first->prefix : "");
    }
    return text;
}
