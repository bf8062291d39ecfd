#include "client/expertctl/bench/load/bench_schedule.h"

#include "base/clock.h"

enum { STREAM_OF_SCHEDULES = 1 << 20 }; // distinct from the random streams of tokens and rows

static double poisson_gap(struct bench_schedule *schedule) {
    return -log(1 - bench_random_unit(&schedule->random)) * schedule->gap_ns;
}

void schedule_init(struct bench_schedule *schedule, enum arrivals arrivals, double rate, uint32_t process, uint32_t processes,
                   uint64_t seed) {
    *schedule = (struct bench_schedule){
        .arrivals = arrivals,
        .gap_ns = (double)NS_PER_S / rate * processes,
        .random = bench_random_seeded(seed, STREAM_OF_SCHEDULES + process),
    };
    schedule->at_ns = arrivals == ARRIVALS_CONSTANT ? schedule->gap_ns / processes * process : poisson_gap(schedule);
}

int64_t schedule_next_ns(struct bench_schedule *schedule) {
    double at = schedule->at_ns;
    schedule->at_ns += schedule->arrivals == ARRIVALS_CONSTANT ? schedule->gap_ns : poisson_gap(schedule);
    return at < 0x1p62 ? (int64_t)at : CLOCK_NEVER;
}
