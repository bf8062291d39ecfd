#include "expertd/kernels/schedule.h"

#include "kernels/cpu/backend/backend.h"

enum {
    RUN_BYTES = 512 << 10,
    TASKS_PER_THREAD = 8,
    RUN_BYTES_MAX = 64 << 20,
    TASKS_PER_THREAD_MAX = 1024,
};
_Static_assert((int)EXPERTD_SCHEDULE_CALL_ROWS_MAX == (int)KERNEL_CALL_ROWS, "the public limit is that of the kernels");

uint32_t expertd_schedule_rows(size_t rows, size_t groups) {
    size_t mean = groups ? rows / groups : 0;
    uint32_t class_rows = 1;
    while (class_rows < EXPERTD_SCHEDULE_ROWS_MAX && 2 * (size_t)class_rows <= mean) {
        class_rows *= 2;
    }
    return class_rows;
}

struct expertd_matmul_schedule expertd_schedule_heuristic(void) {
    return (struct expertd_matmul_schedule){
        .call_rows = KERNEL_CALL_ROWS, .run_bytes = RUN_BYTES, .tasks_per_thread = TASKS_PER_THREAD};
}

// Candidates differ from the heuristic in one field each: gains rarely need two changes, and every trial costs start-up time.
bool expertd_schedule_candidate(const struct expertd_schedule_class *wanted, size_t i, struct expertd_matmul_schedule *out) {
    static const struct expertd_matmul_schedule CHANGES[] = {
        {0},
        {.tasks_per_thread = 1},
        {.tasks_per_thread = 2},
        {.tasks_per_thread = 16},
        {.tasks_per_thread = 64},
        {.run_bytes = 16 << 10},
        {.run_bytes = 64 << 10},
        {.run_bytes = 1 << 20},
        {.call_rows = EXPERTD_SCHEDULE_CALL_ROWS_MIN},
        {.call_rows = 96},
        {.call_rows = 144},
    };
    size_t count = sizeof CHANGES / sizeof *CHANGES;
    if (wanted->rows < CHANGES[count - 3].call_rows) {
        count -= 3; // no call has so many rows
    }
    if (i >= count) {
        return false;
    }
    *out = expertd_schedule_heuristic();
    out->call_rows = CHANGES[i].call_rows ? CHANGES[i].call_rows : out->call_rows;
    out->run_bytes = CHANGES[i].run_bytes ? CHANGES[i].run_bytes : out->run_bytes;
    out->tasks_per_thread = CHANGES[i].tasks_per_thread ? CHANGES[i].tasks_per_thread : out->tasks_per_thread;
    return true;
}

bool expertd_schedule_is_valid(const struct expertd_matmul_schedule *s) {
    return s->call_rows >= EXPERTD_SCHEDULE_CALL_ROWS_MIN && s->call_rows <= KERNEL_CALL_ROWS && s->run_bytes >= 1 &&
           s->run_bytes <= RUN_BYTES_MAX && s->tasks_per_thread >= 1 && s->tasks_per_thread <= TASKS_PER_THREAD_MAX;
}

bool expertd_schedule_class_equal(const struct expertd_schedule_class *a, const struct expertd_schedule_class *b) {
    return a->dtype == b->dtype && a->k == b->k && a->n == b->n && a->panel_bytes == b->panel_bytes && a->rows == b->rows &&
           a->threads == b->threads;
}
