#include "shard/topology.h"

#include <ctype.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LIST_MAX = 1 << 14, PATH_BYTES = 4096, PAGE = 4096 };

static void set_cpu(struct topology_cpus *cpus, unsigned cpu) {
    cpus->bits[cpu / 64] |= (uint64_t)1 << cpu % 64;
}

static uint32_t count_cpus(const struct topology_cpus *cpus) {
    uint32_t count = 0;
    for (size_t i = 0; i < TOPOLOGY_CPUS_MAX / 64; i++) {
        count += (uint32_t)__builtin_popcountll(cpus->bits[i]);
    }
    return count;
}

static FALLIBLE parse_number(const char **at, unsigned long *out) {
    char *end;
    if (!isdigit((unsigned char)**at)) {
        FAIL(EXPERTD_ERR_IO, "bad CPU list: expected a number at \"%.16s\"", *at);
    }
    *out = strtoul(*at, &end, 10);
    if (*out >= TOPOLOGY_CPUS_MAX) {
        FAIL(EXPERTD_ERR_IO, "CPU %lu in a CPU list: CPU numbers must be below %d", *out, TOPOLOGY_CPUS_MAX);
    }
    *at = end;
    return OK;
}

FALLIBLE topology_parse_cpus(const char *text, struct topology_cpus *out) {
    *out = (struct topology_cpus){0};
    const char *at = text;
    while (*at && *at != '\n') {
        unsigned long first, last;
        TRY(parse_number(&at, &first));
        last = first;
        if (*at == '-') {
            at++;
            TRY(parse_number(&at, &last));
        }
        for (unsigned long cpu = first; cpu <= last; cpu++) {
            set_cpu(out, (unsigned)cpu);
        }
        if (*at == ',') {
            at++;
        } else if (*at && *at != '\n') {
            FAIL(EXPERTD_ERR_IO, "bad CPU list: expected a comma at \"%.16s\"", at);
        }
    }
    return OK;
}

// Reads the node's CPUs. False if the node does not exist or its list cannot be parsed.
static bool read_node(const char *root, uint32_t number, struct topology_cpus *out) {
    char path[PATH_BYTES], text[LIST_MAX];
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%u/cpulist", root, number);
    FILE *file = fopen(path, "re");
    if (!file) {
        return false;
    }
    bool got = fgets(text, sizeof text, file) != NULL;
    (void)fclose(file);
    return got && !err_is(topology_parse_cpus(text, out));
}

void topology_read(const char *root, const struct topology_cpus *allowed, struct topology *out) {
    *out = (struct topology){0};
    for (uint32_t number = 0; number < TOPOLOGY_NODES_MAX; number++) {
        struct topology_node node = {.number = number};
        if (!read_node(root, number, &node.cpus)) {
            continue;
        }
        for (size_t i = 0; i < TOPOLOGY_CPUS_MAX / 64; i++) {
            node.cpus.bits[i] &= allowed->bits[i];
        }
        node.count = count_cpus(&node.cpus);
        if (node.count > 0) { // omit nodes that have no CPU for this process
            out->nodes[out->count++] = node;
            out->cpus += node.count;
        }
    }
    if (out->count == 0) {
        out->cpus = count_cpus(allowed);
        out->nodes[out->count++] = (struct topology_node){.count = out->cpus, .cpus = *allowed};
    }
}

void topology_allowed(struct topology_cpus *out) {
    cpu_set_t set;
    *out = (struct topology_cpus){0};
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set)) {
        return;
    }
    for (unsigned cpu = 0; cpu < CPU_SETSIZE && cpu < TOPOLOGY_CPUS_MAX; cpu++) {
        if (CPU_ISSET(cpu, &set)) {
            set_cpu(out, cpu);
        }
    }
}

FALLIBLE topology_pin(const struct topology_node *node) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE && cpu < TOPOLOGY_CPUS_MAX; cpu++) {
        if (node->cpus.bits[cpu / 64] >> cpu % 64 & 1) {
            CPU_SET(cpu, &set);
        }
    }
    if (sched_setaffinity(0, sizeof set, &set)) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot pin a thread to the %u CPUs of memory node %u: %s", node->count, node->number,
             strerror(errno));
    }
    return OK;
}

void topology_prefer(const struct topology_node *node, void *memory, size_t bytes) {
    uintptr_t begin = ((uintptr_t)memory + PAGE - 1) / PAGE * PAGE, end = ((uintptr_t)memory + bytes) / PAGE * PAGE;
    if (node && end > begin) {
        unsigned long mask[TOPOLOGY_NODES_MAX / (8 * sizeof(unsigned long))] = {0};
        mask[node->number / (8 * sizeof mask[0])] |= 1ul << node->number % (8 * sizeof mask[0]);
        (void)syscall(SYS_mbind, begin, end - begin, MPOL_PREFERRED, mask, TOPOLOGY_NODES_MAX + 1, 0);
    }
}
