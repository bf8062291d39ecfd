// A table of tuned schedules, and which table this process uses.
#include "expertd/kernels/tuning.h"

#include <stdatomic.h>

// Set at start, then read by every product, on any thread.
static _Atomic(const struct expertd_tuning_table *) table_in_use;

const struct expertd_matmul_schedule *expertd_tuning_find(const struct expertd_tuning_table *table,
                                                          const struct expertd_schedule_class *wanted) {
    for (size_t i = 0; i < table->count; i++) {
        if (expertd_schedule_class_equal(&table->entries[i].found_for, wanted)) {
            return &table->entries[i].schedule;
        }
    }
    return NULL;
}

bool expertd_tuning_put(struct expertd_tuning_table *table, const struct expertd_tuning_entry *entry) {
    if (!expertd_schedule_is_valid(&entry->schedule) || expertd_dtype_size(entry->found_for.dtype) == 0) {
        return false;
    }
    for (size_t i = 0; i < table->count; i++) {
        if (expertd_schedule_class_equal(&table->entries[i].found_for, &entry->found_for)) {
            table->entries[i] = *entry;
            return true;
        }
    }
    if (table->count == EXPERTD_TUNING_ENTRIES_MAX) {
        return false;
    }
    table->entries[table->count++] = *entry;
    return true;
}

void expertd_tuning_use(const struct expertd_tuning_table *table) {
    atomic_store(&table_in_use, table);
}

struct expertd_matmul_schedule expertd_tuning_schedule(const struct expertd_schedule_class *wanted) {
    const struct expertd_tuning_table *table = atomic_load(&table_in_use);
    const struct expertd_matmul_schedule *found = table ? expertd_tuning_find(table, wanted) : NULL;
    return found && expertd_schedule_is_valid(found) ? *found : expertd_schedule_heuristic();
}

struct expertd_schedule_class expertd_tuning_class(const struct expertd_grouped_matmul_args *args, unsigned threads) {
    size_t rows = 0, groups = 0;
    for (size_t g = args->group_offset; g < args->group_offset + args->num_actual_groups; g++) {
        rows += (size_t)args->group_sizes[g];
        groups += args->group_sizes[g] > 0;
    }
    const struct expertd_packed_weights *weights = args->rhs.packed;
    size_t panels = (weights->n + EXPERTD_KERNEL_PANEL - 1) / EXPERTD_KERNEL_PANEL;
    return (struct expertd_schedule_class){.dtype = weights->dtype,
                                           .k = (uint32_t)weights->k,
                                           .n = (uint32_t)weights->n,
                                           .panel_bytes = (uint32_t)(panels ? weights->group_bytes / panels : 0),
                                           .rows = expertd_schedule_rows(rows, groups),
                                           .threads = threads};
}
