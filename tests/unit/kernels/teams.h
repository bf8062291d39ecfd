// The teams that products are tested with: 1 to 4 threads of the library, and a caller's thread pool.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_TEAMS_H
#define EXPERTD_TESTS_UNIT_KERNELS_TEAMS_H

#include "kernel_test.h"

#include "expertd/kernels/team.h"

enum { TEAMS_OWN = 4, TEAMS = TEAMS_OWN + 1 };

static struct expertd_team *teams[TEAMS]; // teams[i] has i + 1 threads; the last team runs on the pool

static int make_teams(void **state) {
    (void)state;
    err_t e = expertd_team_create_on(&(struct expertd_team_pool){3, run_tasks_backward, NULL}, &teams[TEAMS_OWN]);
    for (unsigned i = 0; i < TEAMS_OWN && !err_is(e); i++) {
        e = expertd_team_create(&(struct expertd_team_options){i + 1, 20}, &teams[i]);
    }
    return err_is(e);
}

static int destroy_teams(void **state) {
    (void)state;
    for (unsigned i = 0; i < TEAMS; i++) {
        expertd_team_destroy(teams[i]);
    }
    return 0;
}

#endif
