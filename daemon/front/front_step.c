#include "daemon/front/front_step.h"

#include "base/clock.h"

static void carry_out_all(struct front *front) {
    struct membership_action action;
    while (membership_next(&front->membership, &action)) {
        front->steps->carry_out(front, &action);
    }
}

void front_run(struct front *front) {
    struct membership_event event;
    carry_out_all(front);
    while (front->steps->next(front, &event)) {
        event.now_ns = clock_now_ns();
        membership_step(&front->membership, &event);
        carry_out_all(front);
    }
    front->steps->settled(front);
}

void front_event(struct front *front, struct membership_event *event) {
    event->now_ns = clock_now_ns();
    membership_step(&front->membership, event);
    front_run(front);
}
