#include "daemon/config/options_table.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/suggest.h"
#include "daemon/config/options.h"
#include "daemon/grpc/rpc.h"
#include "expertd/kernels/team.h"

#define FIELD(name) offsetof(struct options, name)
#define KIB (1ull << 10)
#define MIB (1ull << 20)

// A message's length is an int inside gRPC; a day is long enough for any timeout.
enum { MESSAGE_BYTES_GREATEST = 0x7fffffff, DAY_MS = 86400000 };

const struct options_row OPTIONS_ROWS[OPTION_COUNT] = {
    [OPTION_MODEL] = {.name = "model",
                      .type = OPTIONS_TEXT,
                      .offset = FIELD(model),
                      .value = "MODEL",
                      .help =
                          "What to serve: the folder of a checkpoint, ORG/NAME in the local Hugging Face cache (never fetched), or "
                          "synthetic:PRESET[,layers=N][,experts=N][,seed=S][,format=F]. Required."},
    [OPTION_LAYERS] = {.name = "layers",
                       .type = OPTIONS_LAYERS,
                       .offset = FIELD(have_layers),
                       .fallback = "all",
                       .value = "A-B",
                       .help = "Serve only the MoE layers numbered A to B, both of the model's, or all."},
    [OPTION_COMPUTE_DTYPE] = {.name = "compute_dtype",
                              .type = OPTIONS_DTYPE,
                              .offset = FIELD(compute_dtype),
                              .fallback = "auto",
                              .value = "TYPE",
                              .help = "auto, bf16 or f32. auto is f32 where every expert weight is F32, else bf16."},
    [OPTION_WIDEN] = {.name = "widen",
                      .type = OPTIONS_TRUTH,
                      .offset = FIELD(widen),
                      .fallback = "false",
                      .value = "[BOOL]",
                      .help = "Widen quantised weights to the compute dtype while loading: two or more times the memory, and a "
                              "numerics_id of its own. Without it they stay as the checkpoint has them."},
    [OPTION_HF_CACHE] = {.name = "hf_cache",
                         .type = OPTIONS_TEXT,
                         .offset = FIELD(hf_cache),
                         .value = "DIR",
                         .help = "Where ORG/NAME is looked up [default: $HF_HUB_CACHE, $HF_HOME/hub, "
                                 "$XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub]."},
    [OPTION_LISTEN] = {.name = "listen",
                       .type = OPTIONS_LISTEN,
                       .offset = FIELD(listen),
                       .value = "ADDRESS",
                       .help = "Where gRPC is served: unix:PATH or HOST:PORT (port 0: any free one). Repeatable; in a variable, "
                               "comma-separated [default: unix:$RUNTIME_DIRECTORY/expertd.sock, or in $XDG_RUNTIME_DIR where "
                               "that is set instead, and 127.0.0.1:7411]."},
    [OPTION_HTTP] = {.name = "http",
                     .type = OPTIONS_ADDRESS,
                     .offset = FIELD(http),
                     .fallback = "127.0.0.1:7412",
                     .value = "HOST:PORT",
                     .help = "Where /metrics, /health/live, /health/ready, /api/status and the status page are served, or off."},
    [OPTION_ADMIN] = {.name = "admin",
                      .type = OPTIONS_SOCKET,
                      .offset = FIELD(admin),
                      .value = "ADDRESS",
                      .help = "Where expertctl placement and drain are served, for this user and root alone: unix:PATH, or off "
                              "[default: beside the first Unix socket, as expertd-admin.sock beside expertd.sock]."},
    [OPTION_ALLOW_UIDS] = {.name = "allow_uids",
                           .type = OPTIONS_UIDS,
                           .offset = FIELD(allow_uids),
                           .fallback = "self",
                           .value = "UIDS",
                           .help = "Who may connect to a Unix socket: self (this user and root), any, or numeric user ids, "
                                   "comma-separated."},
    [OPTION_DEVICE] =
        {.name = "device",
         .type = OPTIONS_DEVICE,
         .offset = FIELD(device),
         .fallback = "auto",
         .value = "DEVICE",
         .help =
             "auto (one GPU, where the module for CUDA and a driver find one of a kind that has shown its kernels right, "
             "which is compute capability 9 so far (an H100 and an H200 were tried), and that takes the model, unless --kernels "
             "names others; "
             "else the CPU, and the log says "
             "why), cpu, cuda "
             "(every GPU), cuda:0,1 (those), or sim:N (N simulated GPUs on this CPU, slowly, to try the rest); with /VARIANT "
             "behind "
             "it (cuda/mma_64) one kind of kernel makes all products of its dtype. Other GPUs than Hopper's are taken where they "
             "are "
             "asked for, and several at once: neither has been tried but in simulation."},
    [OPTION_KERNELS] =
        {.name = "kernels",
         .type = OPTIONS_CHOICE,
         .offset = FIELD(kernels),
         .fallback = "auto",
         .choices = "auto|scalar|scalar_amx|scalar_sm90|avx2|avx512|avx512vnni|avx512bf16|amxint8|amx|neon|neondot|neonbf16",
         .value = "SET",
         .help = "The instruction set to compute with. auto takes the best that this CPU runs; all give the same bits but "
                 "amx (AMX-BF16, several times as fast in prefill), scalar_amx (the same bits as amx, anywhere and slowly) and "
                 "scalar_sm90 (the bits of a Hopper GPU, slowly), whose numerics_id is their own, and which auto never takes. "
                 "Others: scalar, avx2, avx512, avx512vnni, avx512bf16, amxint8; on aarch64 (tried under an emulator alone, speed "
                 "unknown) neon, neondot, neonbf16."},
    [OPTION_TUNING] = {.name = "tuning",
                       .type = OPTIONS_CHOICE,
                       .offset = FIELD(tuning),
                       .fallback = "heuristic",
                       .choices = "heuristic|cached|tune",
                       .value = "POLICY",
                       .help =
                           "heuristic, cached or tune: how products are cut into work. cached takes what tuning_cache has; tune "
                           "tries what is missing there at the start, a second for each kind of matrix. Answers do not depend "
                           "on it."},
    [OPTION_TUNING_CACHE] = {.name = "tuning_cache",
                             .type = OPTIONS_TEXT,
                             .offset = FIELD(tuning_cache),
                             .value = "FILE",
                             .help = "File of what tuning found, for cached and tune. One that is damaged or from another CPU is "
                                     "logged and not used."},
    [OPTION_SHARDS] = {.name = "shards",
                       .type = OPTIONS_NUMBER,
                       .offset = FIELD(shards),
                       .fallback = "1",
                       .least = 1,
                       .greatest = 1024,
                       .value = "N",
                       .help = "Shards in this process that the experts are spread over. Answers do not depend on it."},
    [OPTION_PLACEMENT] = {.name = "placement",
                          .type = OPTIONS_CHOICE,
                          .offset = FIELD(placement),
                          .fallback = "contiguous",
                          .choices = "contiguous|balanced",
                          .value = "POLICY",
                          .help = "contiguous or balanced: how experts are spread over the shards at the start. balanced evens out "
                                  "the load that placement_counts gives."},
    [OPTION_PLACEMENT_COUNTS] = {.name = "placement_counts",
                                 .type = OPTIONS_TEXT,
                                 .offset = FIELD(placement_counts),
                                 .value = "FILE",
                                 .help =
                                     "JSON file of rows per expert, for placement balanced: {\"layers\": {\"3\": [120, 7, ...]}} "
                                     "with a count for each expert of every layer that is served, or what expertctl placement show "
                                     "--json printed."},
    [OPTION_REPLICAS] = {.name = "replicas",
                         .type = OPTIONS_NUMBER,
                         .offset = FIELD(replicas),
                         .fallback = "0",
                         .least = 0,
                         .greatest = 1 << 16,
                         .value = "N",
                         .help = "Second and further copies of each layer's busiest experts, for placement balanced."},
    [OPTION_MOVE_BYTES_MAX] =
        {.name = "move_bytes_max",
         .type = OPTIONS_BYTES,
         .offset = FIELD(move_bytes_max),
         .fallback = "1GiB",
         .least = 1,
         .greatest = INT64_MAX,
         .value = "BYTES",
         .help = "Memory that moving experts between shards may take beside the weights; on devices it is reserved at the "
                 "start, of each."},
    [OPTION_EXCHANGE_TIMEOUT_MS] = {.name = "exchange_timeout_ms",
                                    .type = OPTIONS_NUMBER,
                                    .offset = FIELD(exchange_timeout_ms),
                                    .fallback = "10000",
                                    .least = 10,
                                    .greatest = DAY_MS,
                                    .value = "MS",
                                    .help = "Time that devices have for a batch. What takes longer does not answer: the batch gets "
                                            "SHARD_LOST. Several devices get a new communicator; one alone is lost."},
    [OPTION_THREADS] = {.name = "threads",
                        .type = OPTIONS_NUMBER,
                        .offset = FIELD(threads),
                        .least = 1,
                        .greatest = EXPERTD_TEAM_THREADS_MAX,
                        .value = "N",
                        .help = "Compute threads, over all shards together [default: the CPUs this process may use]."},
    [OPTION_SPIN_US] = {.name = "spin_us",
                        .type = OPTIONS_NUMBER,
                        .offset = FIELD(spin_us),
                        .fallback = "50",
                        .least = 0,
                        .greatest = 1000000,
                        .value = "US",
                        .help = "Microseconds that idle compute threads spin before they sleep."},
    [OPTION_MEMORY_MAX] = {.name = "memory_max",
                           .type = OPTIONS_BYTES,
                           .offset = FIELD(memory_max),
                           .fallback = "0",
                           .least = 0,
                           .greatest = INT64_MAX,
                           .value = "BYTES",
                           .help = "Memory that the weights may take; 0 is what is available."},
    [OPTION_MAX_MESSAGE_BYTES] = {.name = "max_message_bytes",
                                  .type = OPTIONS_BYTES,
                                  .offset = FIELD(max_message_bytes),
                                  .fallback = "64MiB",
                                  .least = 4 * KIB,
                                  .greatest = MESSAGE_BYTES_GREATEST,
                                  .value = "BYTES",
                                  .help = "Largest message taken; larger ones are refused, the connection stays."},
    [OPTION_MAX_BATCH_TOKENS] = {.name = "max_batch_tokens",
                                 .type = OPTIONS_NUMBER,
                                 .offset = FIELD(max_batch_tokens),
                                 .fallback = "4096",
                                 .least = 1,
                                 .greatest = 1 << 20,
                                 .value = "N",
                                 .help = "Most tokens in a batch."},
    [OPTION_MAX_PIECE_TOKENS] =
        {.name = "max_piece_tokens",
         .type = OPTIONS_NUMBER,
         .offset = FIELD(max_piece_tokens),
         .fallback = "512",
         .least = 1,
         .greatest = 1 << 20,
         .value = "N",
         .help = "Larger requests are computed in pieces of so many tokens, with small ones in between; at most "
                 "max_batch_tokens, which lowers it where it is not given."},
    [OPTION_MAX_REQUEST_TOKENS] = {.name = "max_request_tokens",
                                   .type = OPTIONS_NUMBER,
                                   .offset = FIELD(max_request_tokens),
                                   .fallback = "65536",
                                   .least = 1,
                                   .greatest = 1 << 24,
                                   .value = "N",
                                   .help = "Most tokens in a request."},
    [OPTION_MAX_QUEUE_DELAY_US] = {.name = "max_queue_delay_us",
                                   .type = OPTIONS_NUMBER,
                                   .offset = FIELD(max_queue_delay_us),
                                   .fallback = "0",
                                   .least = 0,
                                   .greatest = 1000000,
                                   .value = "US",
                                   .help = "Microseconds that a batch which is not full may wait for company."},
    [OPTION_MAX_TOP_K] = {.name = "max_top_k",
                          .type = OPTIONS_NUMBER,
                          .offset = FIELD(max_top_k),
                          .fallback = "64",
                          .least = 1,
                          .greatest = 1024,
                          .value = "N",
                          .help = "Most experts per token that a caller's routes may name."},
    [OPTION_MAX_CALLS] = {.name = "max_calls",
                          .type = OPTIONS_NUMBER,
                          .offset = FIELD(max_calls),
                          .fallback = "1024",
                          .least = 1,
                          .greatest = 1 << 20,
                          .value = "N",
                          .help = "Most calls open at once."},
    [OPTION_MAX_STREAMS] = {.name = "max_streams",
                            .type = OPTIONS_NUMBER,
                            .offset = FIELD(max_streams),
                            .fallback = "64",
                            .least = 1,
                            .greatest = 1 << 16,
                            .value = "N",
                            .help = "Most streams open at once; each may hold one message that is being read."},
    [OPTION_MAX_INFLIGHT] = {.name = "max_inflight",
                             .type = OPTIONS_NUMBER,
                             .offset = FIELD(max_inflight),
                             .fallback = "16",
                             .least = 1,
                             .greatest = 1 << 16,
                             .value = "N",
                             .help = "Most unanswered requests of one stream."},
    [OPTION_MAX_QUEUE] = {.name = "max_queue",
                          .type = OPTIONS_NUMBER,
                          .offset = FIELD(max_queue),
                          .fallback = "256",
                          .least = 1,
                          .greatest = 1 << 20,
                          .value = "N",
                          .help = "Most requests admitted and not yet answered; more are told when to come back."},
    [OPTION_MAX_QUEUE_BYTES] =
        {.name = "max_queue_bytes",
         .type = OPTIONS_BYTES,
         .offset = FIELD(max_queue_bytes),
         .fallback = "256MiB",
         .least = 4 * KIB,
         .greatest = 1ull << 50,
         .value = "BYTES",
         .help = "Their bytes in all; at least max_message_bytes. With devices as much memory is pinned for messages, so "
                 "that hidden rows leave for a device from where they lie."},
    [OPTION_MAX_CONNECTION_SHARE] = {.name = "max_connection_share",
                                     .type = OPTIONS_NUMBER,
                                     .offset = FIELD(max_connection_share),
                                     .fallback = "50",
                                     .least = 1,
                                     .greatest = 100,
                                     .value = "PERCENT",
                                     .help = "Percentage of max_calls, max_streams, read_slots and max_regions that one connection "
                                             "may hold, and of the queue while others wait; one of each at least."},
    [OPTION_MAX_CONNECTIONS] = {.name = "max_connections",
                                .type = OPTIONS_NUMBER,
                                .offset = FIELD(max_connections),
                                .fallback = "1024",
                                .least = 1,
                                .greatest = 1 << 20,
                                .value = "N",
                                .help = "Most connections of each address served, less where the process may open fewer files. "
                                        "Whoever comes over it is closed at once, unless a connection that has said nothing yet "
                                        "can go instead; silent ones go after 10 s anyway."},
    [OPTION_READ_SLOTS] = {.name = "read_slots",
                           .type = OPTIONS_NUMBER,
                           .offset = FIELD(read_slots),
                           .fallback = "8",
                           .least = 1,
                           .greatest = 1024,
                           .value = "N",
                           .help = "Messages being read at once, each counted as max_message_bytes until it is in."},
    [OPTION_MAX_REGION_BYTES] = {.name = "max_region_bytes",
                                 .type = OPTIONS_BYTES,
                                 .offset = FIELD(max_region_bytes),
                                 .fallback = "256MiB",
                                 .least = 0,
                                 .greatest = 1ull << 50,
                                 .value = "BYTES",
                                 .help = "The largest region of memory shared with a client of this host; 0 shares none."},
    [OPTION_MAX_REGIONS] = {.name = "max_regions",
                            .type = OPTIONS_NUMBER,
                            .offset = FIELD(max_regions),
                            .fallback = "64",
                            .least = 1,
                            .greatest = 4096,
                            .value = "N",
                            .help = "Most such regions at once."},
    [OPTION_RPC_THREADS] = {.name = "rpc_threads",
                            .type = OPTIONS_NUMBER,
                            .offset = FIELD(rpc_threads),
                            .fallback = "1",
                            .least = 1,
                            .greatest = RPC_THREADS_MAX,
                            .value = "N",
                            .help = "Threads that serve gRPC."},
    [OPTION_DRAIN_TIMEOUT_MS] = {.name = "drain_timeout_ms",
                                 .type = OPTIONS_NUMBER,
                                 .offset = FIELD(drain_timeout_ms),
                                 .fallback = "30000",
                                 .least = 0,
                                 .greatest = DAY_MS,
                                 .value = "MS",
                                 .help = "Milliseconds from SIGTERM until what still runs is cancelled."},
    [OPTION_SEND_TIMEOUT_MS] = {.name = "send_timeout_ms",
                                .type = OPTIONS_NUMBER,
                                .offset = FIELD(send_timeout_ms),
                                .fallback = "30000",
                                .least = 1,
                                .greatest = DAY_MS,
                                .value = "MS",
                                .help = "Milliseconds after which a client that does not read its answers loses its stream."},
    [OPTION_LOG_LEVEL] = {.name = "log_level",
                          .type = OPTIONS_CHOICE,
                          .offset = FIELD(log_level),
                          .fallback = "info",
                          .choices = "error|warning|info|debug",
                          .value = "LEVEL",
                          .help = "error, warning, info or debug."},
    [OPTION_CONFIG] = {.name = "config",
                       .type = OPTIONS_TEXT,
                       .offset = FIELD(config),
                       .reach = OPTIONS_NOT_IN_FILE,
                       .value = "FILE",
                       .help = "YAML file of the options above: key: value, with underscores or dashes."},
    [OPTION_CHECK_CONFIG] = {.name = "check_config",
                             .type = OPTIONS_SWITCH,
                             .offset = FIELD(check_config),
                             .reach = OPTIONS_FLAG_ONLY,
                             .help = "Check the configuration, but for a model's files, and exit."},
    [OPTION_PRINT_CONFIG] = {.name = "print_config",
                             .type = OPTIONS_SWITCH,
                             .offset = FIELD(print_config),
                             .reach = OPTIONS_FLAG_ONLY,
                             .help = "Print every value and where it came from, as a file for --config, and exit."},
    [OPTION_VERSION] = {.name = "version",
                        .type = OPTIONS_SWITCH,
                        .offset = FIELD(version),
                        .reach = OPTIONS_FLAG_ONLY,
                        .help = "Print the version and exit."},
    [OPTION_HELP] =
        {.name = "help", .type = OPTIONS_SWITCH, .offset = FIELD(help), .reach = OPTIONS_FLAG_ONLY, .help = "Print this and exit."},
};

const struct options_group OPTIONS_GROUP_TITLES[OPTIONS_GROUPS] = {
    {OPTION_MODEL, "Model"},
    {OPTION_LISTEN, "Addresses"},
    {OPTION_DEVICE, "Machine"},
    {OPTION_MAX_MESSAGE_BYTES, "Limits"},
    {OPTION_DRAIN_TIMEOUT_MS, "Service"},
    {OPTION_CONFIG, "Configuration"},
};

const char *options_flag_name(const struct options_row *row, char out[OPTIONS_NAME_MAX]) {
    snprintf(out, OPTIONS_NAME_MAX, "--%s", row->name);
    for (char *p = out; *p; p++) {
        *p = *p == '_' ? '-' : *p;
    }
    return out;
}

const char *options_variable_name(const struct options_row *row, char out[OPTIONS_NAME_MAX]) {
    snprintf(out, OPTIONS_NAME_MAX, "EXPERTD_%s", row->name);
    for (char *p = out; *p; p++) {
        *p = (char)toupper((unsigned char)*p);
    }
    return out;
}

static char plain(char c) {
    return c == '-' ? '_' : c;
}

static bool same_name(const char *row_name, const char *name, size_t length) {
    if (strlen(row_name) != length) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        if (row_name[i] != plain(name[i])) {
            return false;
        }
    }
    return true;
}

const struct options_row *options_find(const char *name, size_t length) {
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (same_name(OPTIONS_ROWS[i].name, name, length)) {
            return &OPTIONS_ROWS[i];
        }
    }
    return NULL;
}

const struct options_row *options_nearest(const char *name, size_t length, enum options_reach reach) {
    const char *names[OPTION_COUNT];
    size_t count = 0;
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (OPTIONS_ROWS[i].reach <= reach) {
            names[count++] = OPTIONS_ROWS[i].name;
        }
    }
    const char *near = suggest_word(name, length, names, count);
    return near ? options_find(near, strlen(near)) : NULL;
}
