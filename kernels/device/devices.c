#include "expertd/kernels/devices.h"

#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "kernels/device/device_plan.h"

#define DEVICES_FORMS                                                                                                              \
    "cuda (all GPUs), cuda:0,1 (these GPUs), sim (one simulated GPU) or sim:N (N simulated GPUs); append /VARIANT to compute all " \
    "products with one variant of the kernels"

enum { NUMBER_MAX = 1023 }; // of a device: far above any driver's numbers, far below overflow

// Decimal numbers, comma-separated, each at most once, to the end of the text.
static bool parse_numbers(const char *text, struct expertd_devices_request *out) {
    do {
        char *end;
        if (*text < '0' || *text > '9' || out->count == EXPERTD_DEVICES_MAX) {
            return false;
        }
        unsigned long number = strtoul(text, &end, 10);
        for (uint32_t i = 0; i < out->count; i++) {
            if (out->numbers[i] == number) {
                return false;
            }
        }
        if (number > NUMBER_MAX) {
            return false;
        }
        out->numbers[out->count++] = (uint32_t)number;
        text = end;
    } while (*text++ == ',');
    return text[-1] == '\0';
}

static bool parse(const char *text, struct expertd_devices_request *out) {
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    *out = (struct expertd_devices_request){0};
    if (length == 4 && memcmp(text, "cuda", 4) == 0) {
        memcpy(out->kind, "cuda", sizeof "cuda");
        return !colon || parse_numbers(colon + 1, out);
    }
    if (length != 3 || memcmp(text, "sim", 3) != 0) {
        return false;
    }
    memcpy(out->kind, "sim", sizeof "sim");
    struct expertd_devices_request count = {.numbers = {1}, .count = !colon};
    bool numbers = !colon || parse_numbers(colon + 1, &count);
    out->count = count.numbers[0];
    for (uint32_t i = 0; i < EXPERTD_DEVICES_MAX; i++) {
        out->numbers[i] = i;
    }
    return numbers && count.count == 1 && out->count >= 1 && out->count <= EXPERTD_DEVICES_MAX;
}

FALLIBLE expertd_devices_parse(const char *text, struct expertd_devices_request *out) {
    char devices[128];
    const char *slash = strchr(text, '/');
    size_t length = slash ? (size_t)(slash - text) : strlen(text);
    if (length < sizeof devices) {
        memcpy(devices, text, length);
        devices[length] = '\0';
    }
    if (length >= sizeof devices || !parse(devices, out)) {
        FAIL(EXPERTD_ERR_CONFIG, "\"%s\" is not a device: write auto, cpu, " DEVICES_FORMS, text);
    }
    out->forced = EXPERTD_DEVICE_VARIANTS;
    return slash ? device_variant_parse(slash + 1, &out->forced) : OK;
}

// ---- the module

static FALLIBLE module_path(const char *kind, char path[PATH_MAX]) {
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "/proc/self/exe cannot be read, so this program cannot find its device modules: mount /proc");
    }
    program[length] = '\0';
    for (int up = 0; up < 2; up++) { // removes the program's name, then its folder's
        char *slash = strrchr(program, '/');
        *(slash ? slash : program) = '\0';
    }
    if (snprintf(path, PATH_MAX, "%s/lib/expertd/libexpertd_%s.so", program, kind) >= PATH_MAX) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "the path of this program is too long to find its modules");
    }
    return OK;
}

static FALLIBLE load_module(const char *kind, struct expertd_devices *out) {
    char path[PATH_MAX];
    TRY(module_path(kind, path));
    if (access(path, R_OK) != 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "no module: there is no %s%s, so this installation has no kernels for %s devices%s", path,
             access(path, F_OK) == 0 ? " that may be read" : "", kind,
             strcmp(kind, "cuda") == 0
                 ? "; build it where nvcc is (deploy/install-deps --cuda fetches one) with cmake "
                   "-DEXPERTD_CUDA=ON, and install it from the same build"
                 : "; `cmake --build BUILD --target expertd_sim` makes it, and cmake --install puts it there");
    }
    out->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!out->library) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "the module for %s devices does not load: %s", kind, dlerror());
    }
    const struct expertd_device_table *table = dlsym(out->library, EXPERTD_DEVICE_TABLE_SYMBOL);
    if (!table || table->version != EXPERTD_DEVICE_VERSION || table->bytes != sizeof *table) {
        FAIL(EXPERTD_ERR_UNAVAILABLE,
             "%s is of another version of expertd (its table is %u, this program's %d): install both from one build", path,
             table ? table->version : 0, EXPERTD_DEVICE_VERSION);
    }
    out->table = table;
    return OK;
}

// Checked before CUDA's runtime is called, which reports a missing driver as one that is too old.
static FALLIBLE find_driver(const char *kind) {
    if (strcmp(kind, "cuda") != 0) {
        return OK;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!driver) {
        FAIL(EXPERTD_ERR_UNAVAILABLE,
             "no driver: %s; install NVIDIA's driver for this machine's GPU, or give this container its GPUs (docker: --gpus all)",
             dlerror());
    }
    dlclose(driver);
    return OK;
}

// ---- devices

FALLIBLE expertd_devices_check(const struct expertd_devices *devices, uint32_t index, enum expertd_device_code code,
                               const struct expertd_device_error *error) {
    static const enum expertd_err_code CODES[] = {[EXPERTD_DEVICE_MISSING] = EXPERTD_ERR_UNAVAILABLE,
                                                  [EXPERTD_DEVICE_NOMEM] = EXPERTD_ERR_NOMEM,
                                                  [EXPERTD_DEVICE_FAILED] = EXPERTD_ERR_SHARD_LOST};
    if (code == EXPERTD_DEVICE_OK) {
        return OK;
    }
    FAIL(CODES[code], "%s device %u: %s", devices->table->kind, devices->numbers[index], error->message);
}

// Small batches take a few hundred microseconds, so the first 200 us only yield, as a team's threads spin before they sleep. Then
// each sleep is a sixteenth of the time spent so far, which adds little to a long wait. The timer slack is reduced because its
// default would lengthen each sleep by 50 us.
void expertd_devices_pause(int64_t since_ns) {
    enum { SPIN_NS = 200 * NS_PER_US, STEP_MAX_NS = NS_PER_MS, STEP_SHARE = 16, SLACK_NS = NS_PER_US };
    int64_t spent = clock_now_ns() - since_ns;
    if (spent < SPIN_NS) {
        sched_yield();
        return;
    }
    int64_t step = spent / STEP_SHARE;
    struct timespec t = {.tv_nsec = step > STEP_MAX_NS ? STEP_MAX_NS : step};
    (void)prctl(PR_SET_TIMERSLACK, SLACK_NS); // for this thread
    nanosleep(&t, NULL);
}

static FALLIBLE poll(const struct expertd_devices *devices, uint32_t index,
                     enum expertd_device_code (*finished)(struct expertd_device *, int *, struct expertd_device_error *),
                     const char *work) {
    int64_t started_ns = clock_now_ns();
    for (;;) {
        struct expertd_device_error error;
        int64_t asked_ns = clock_now_ns();
        int ended = 0;
        TRY(expertd_devices_check(devices, index, finished(devices->all[index], &ended, &error), &error));
        if (ended) {
            return OK;
        }
        if (asked_ns - started_ns > devices->timeout_ns) {
            FAIL(EXPERTD_ERR_SHARD_LOST, "%s device %u did not end %s within %lld ms (exchange_timeout_ms)", devices->table->kind,
                 devices->numbers[index], work, (long long)(devices->timeout_ns / NS_PER_MS));
        }
        expertd_devices_pause(started_ns);
    }
}

FALLIBLE expertd_devices_wait(const struct expertd_devices *devices, uint32_t index) {
    struct expertd_device_error error;
    struct expertd_device *device = devices->all[index];
    if (devices->timeout_ns == 0) {
        return expertd_devices_check(devices, index, devices->table->wait(device, &error), &error);
    }
    TRY(expertd_devices_check(devices, index, devices->table->mark(device, &error), &error));
    return poll(devices, index, devices->table->finished, "its work");
}

FALLIBLE expertd_devices_wait_downloads(const struct expertd_devices *devices, uint32_t index) {
    struct expertd_device_error error;
    if (devices->timeout_ns == 0) {
        return expertd_devices_check(devices, index, devices->table->wait_downloads(devices->all[index], &error), &error);
    }
    return poll(devices, index, devices->table->finished_downloads, "copying its results");
}

void expertd_devices_release(const struct expertd_devices *devices, uint32_t index, void *memory) {
    if (!devices->stuck) {
        devices->table->release(devices->all[index], memory);
    }
}

void expertd_devices_unpin(const struct expertd_devices *devices, void *memory) {
    if (!devices->stuck) {
        devices->table->unpin(devices->all[0], memory);
    }
}

// A forced variant that is not known to give the bits of the device's default variants gets an arithmetic name of its own.
static void append_forced_variant(const struct expertd_devices *devices, struct expertd_device_facts *facts) {
    enum expertd_device_variant forced = devices->forced;
    bool other = forced >= EXPERTD_DEVICE_MMA_16 && forced < EXPERTD_DEVICE_VARIANTS && forced != facts->bf16.alone &&
                 !(facts->bf16.equal >> forced & 1);
    size_t length = strlen(facts->arithmetic);
    if (other) {
        snprintf(facts->arithmetic + length, sizeof facts->arithmetic - length, "_%s", device_variant_name(forced));
    }
}

static FALLIBLE open_one(struct expertd_devices *devices, uint32_t index) {
    struct expertd_device_error error;
    struct expertd_device_facts facts;
    const struct expertd_device_table *table = devices->table;
    TRY(expertd_devices_check(devices, index, table->open(devices->numbers[index], &devices->all[index], &error), &error));
    TRY(expertd_devices_check(devices, index, table->describe(devices->all[index], &facts, &error), &error));
    append_forced_variant(devices, &facts);
    if (index == 0) {
        devices->facts = facts;
    } else if (strcmp(facts.arithmetic, devices->facts.arithmetic) != 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE,
             "%s device %u (%s) computes as %s, device %u (%s) as %s: shards of one layer must give the same bits", table->kind,
             devices->numbers[index], facts.name, facts.arithmetic, devices->numbers[0], devices->facts.name,
             devices->facts.arithmetic);
    }
    return OK;
}

// Chooses among `available` devices: the requested ones, or all. Where the user named none, the first one of a verified kind, and
// only one: several GPUs at once have been verified in simulation only.
static FALLIBLE choose_devices(const struct expertd_devices_request *request, uint32_t available, struct expertd_devices *devices) {
    for (uint32_t i = 0; i < request->count; i++) {
        if (request->numbers[i] >= available) {
            FAIL(EXPERTD_ERR_UNAVAILABLE, "no %s device %u: there are %u, numbered from 0", request->kind, request->numbers[i],
                 available);
        }
        devices->numbers[devices->count++] = request->numbers[i];
    }
    const uint32_t most = request->count > 0 ? 0 : request->automatic ? 1 : EXPERTD_DEVICES_MAX;
    for (uint32_t i = 0; i < available && devices->count < most; i++) {
        if (!request->automatic || devices->table->proven(i)) {
            devices->numbers[devices->count++] = i;
        }
    }
    devices->unopened = request->automatic ? available - devices->count : 0;
    if (devices->count == 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "%u %s device%s there, but no such device has run these kernels yet: --device %s takes %s",
             available, request->kind, available == 1 ? " is" : "s are", request->kind, available == 1 ? "it" : "them");
    }
    return OK;
}

static FALLIBLE open_all(const struct expertd_devices_request *request, struct expertd_devices *devices) {
    struct expertd_device_error error;
    uint32_t available = 0;
    TRY(load_module(request->kind, devices));
    TRY(find_driver(request->kind));
    enum expertd_device_code code = devices->table->count(&available, &error);
    if (code != EXPERTD_DEVICE_OK || available == 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE,
             "no %s device: %s; nvidia-smi lists the GPUs that the driver sees; CUDA_VISIBLE_DEVICES may hide some", request->kind,
             code != EXPERTD_DEVICE_OK ? error.message : "the driver finds no GPU");
    }
    TRY(choose_devices(request, available, devices));
    for (uint32_t i = 0; i < devices->count; i++) {
        TRY(open_one(devices, i));
    }
    return OK;
}

FALLIBLE expertd_devices_open(const struct expertd_devices_request *request, struct expertd_devices **out) {
    *out = NULL;
    struct expertd_devices *devices = calloc(1, sizeof *devices);
    if (!devices) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for devices");
    }
    devices->forced = request->forced;
    err_t e = open_all(request, devices);
    if (err_is(e)) {
        expertd_devices_close(devices);
        return e;
    }
    *out = devices;
    return OK;
}

FALLIBLE expertd_devices_again(const struct expertd_devices *devices, struct expertd_devices **out) {
    *out = NULL;
    struct expertd_devices *again = calloc(1, sizeof *again);
    if (!again) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for devices");
    }
    *again = *devices;
    memset(again->all, 0, sizeof again->all);
    for (uint32_t i = 0; i < again->count; i++) {
        struct expertd_device_error error;
        enum expertd_device_code code = again->table->open(again->numbers[i], &again->all[i], &error);
        if (code != EXPERTD_DEVICE_OK) {
            err_t e = expertd_devices_check(again, i, code, &error);
            expertd_devices_close(again);
            return e;
        }
    }
    *out = again;
    return OK;
}

// The module stays loaded: CUDA's runtime has its own threads and exit handlers, and a process opens its devices once.
void expertd_devices_close(struct expertd_devices *devices) {
    for (uint32_t i = 0; devices && !devices->stuck && i < devices->count; i++) {
        devices->table->close(devices->all[i]);
    }
    free(devices);
}
