#include "daemon/config/options_table.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/suggest.h"
#include "daemon/config/options_fields.h"
#include "expertd/kernels/team.h"

#define FIELD(name) offsetof(struct options, name)
#define KIB (1ull << 10)
#define MIB (1ull << 20)

// gRPC stores the length of a message as an int. No timeout needs more than a day.
enum { MESSAGE_BYTES_GREATEST = 0x7fffffff, DAY_MS = 86400000 };

const struct options_row OPTIONS_ROWS[OPTION_COUNT] = {
    [OPTION_MODEL] = {.name = "model",
                      .type = OPTIONS_TEXT,
                      .offset = FIELD(model),
                      .value = "MODEL",
                      .help = "The model to serve: a checkpoint folder, a GGUF file, ORG/NAME (or ORG/NAME:QUANT, a GGUF file) in "
                              "the local Hugging Face cache (never downloaded), or "
                              "synthetic:PRESET[,layers=N][,experts=N][,seed=S][,format=F]. Required."},
    [OPTION_ROLE] = {.name = "role",
                     .type = OPTIONS_CHOICE,
                     .offset = FIELD(role),
                     .fallback = "front",
                     .choices = "front|shard",
                     .value = "ROLE",
                     .help =
                         "front: answers callers. shard: holds experts that fronts on other machines assign to it, from its own "
                         "copy of the model, and computes rows for them; it answers no caller's Forward."},
    [OPTION_LAYERS] = {.name = "layers",
                       .type = OPTIONS_LAYERS,
                       .offset = FIELD(have_layers),
                       .fallback = "all",
                       .value = "A-B",
                       .help = "Serve only the MoE layers A to B (inclusive, the checkpoint's layer numbers), or all."},
    [OPTION_COMPUTE_DTYPE] = {.name = "compute_dtype",
                              .type = OPTIONS_DTYPE,
                              .offset = FIELD(compute_dtype),
                              .fallback = "auto",
                              .value = "TYPE",
                              .help = "auto, bf16 or f32. auto is f32 if every expert weight is F32, otherwise bf16."},
    [OPTION_WIDEN] = {.name = "widen",
                      .type = OPTIONS_BOOL,
                      .offset = FIELD(widen),
                      .fallback = "false",
                      .value = "[BOOL]",
                      .help = "Dequantise quantised weights to the compute dtype while loading. They take two or more times the "
                              "memory, and the model has another numerics_id. Otherwise the weights stay quantised in memory, "
                              "except on GPUs those in formats that GPUs have no kernels for."},
    [OPTION_QUANTIZE] = {.name = "quantize",
                         .type = OPTIONS_CHOICE,
                         .offset = FIELD(quantize),
                         .fallback = "none",
                         .choices = "none|fp8|int8|int4|mxfp4",
                         .value = "FORMAT",
                         .help = "Quantise routed experts that the checkpoint stores as F32, F16 or BF16 while loading: fp8 in "
                                 "blocks of 128 x 128, int8 in groups of 128, int4 and mxfp4 in groups of 32; or none. They take "
                                 "a half to a quarter of the memory, and the model has another numerics_id. expertctl compare "
                                 "measures the error."},
    [OPTION_HF_CACHE] = {.name = "hf_cache",
                         .type = OPTIONS_TEXT,
                         .offset = FIELD(hf_cache),
                         .value = "DIR",
                         .help = "Folder in which ORG/NAME is looked up [default: the first that is set of "
                                 "$HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub, $TRANSFORMERS_CACHE, "
                                 "$PYTORCH_TRANSFORMERS_CACHE, $PYTORCH_PRETRAINED_BERT_CACHE, "
                                 "$XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub]."},
    [OPTION_LISTEN] = {.name = "listen",
                       .type = OPTIONS_LISTEN,
                       .offset = FIELD(listen),
                       .value = "ADDRESS",
                       .help = "gRPC address: unix:PATH or HOST:PORT (port 0: any free port). Repeatable; comma-separated in a "
                               "variable [default: unix:$RUNTIME_DIRECTORY/expertd.sock ($XDG_RUNTIME_DIR if that is not set) and "
                               "127.0.0.1:7411]."},
    [OPTION_HTTP] = {.name = "http",
                     .type = OPTIONS_ADDRESS,
                     .offset = FIELD(http),
                     .fallback = "127.0.0.1:7412",
                     .value = "HOST:PORT",
                     .help = "Address of /metrics, /health/live, /health/ready, /api/status and the status page, or off."},
    [OPTION_ADMIN] = {.name = "admin",
                      .type = OPTIONS_SOCKET,
                      .offset = FIELD(admin),
                      .value = "ADDRESS",
                      .help =
                          "Address for expertctl placement and expertctl drain: unix:PATH, where only the daemon's own user and "
                          "root may connect; HOST:PORT, for the names in --tls-allow-admins; or off [default: next to the "
                          "first Unix socket, expertd-admin.sock next to expertd.sock]."},
    [OPTION_ALLOW_UIDS] = {.name = "allow_uids",
                           .type = OPTIONS_UIDS,
                           .offset = FIELD(allow_uids),
                           .fallback = "self",
                           .value = "UIDS",
                           .help = "Users that may connect to the Unix sockets: self (the daemon's own user and root), any, or a "
                                   "comma-separated list of numeric user ids."},
    [OPTION_TLS_CERT] = {.name = "tls_cert",
                         .type = OPTIONS_TEXT,
                         .offset = FIELD(tls_cert),
                         .value = "FILE",
                         .help = "PEM file of this daemon's certificate, followed by those that lead to its CA. With it and "
                                 "--tls-key, every TCP address of --listen and --admin speaks TLS; Unix sockets stay plain. These "
                                 "files are read again when they change, and no connection is dropped."},
    [OPTION_TLS_KEY] = {.name = "tls_key",
                        .type = OPTIONS_TEXT,
                        .offset = FIELD(tls_key),
                        .value = "FILE",
                        .help = "PEM file of the certificate's key, without a passphrase."},
    [OPTION_TLS_CLIENT_CA] = {.name = "tls_client_ca",
                              .type = OPTIONS_TEXT,
                              .offset = FIELD(tls_client_ca),
                              .value = "FILE",
                              .help = "PEM file of CA certificates. Clients on TCP then need a certificate of one of them."},
    [OPTION_TLS_CA] = {.name = "tls_ca",
                       .type = OPTIONS_TEXT,
                       .offset = FIELD(tls_ca),
                       .value = "FILE",
                       .help = "PEM file of CA certificates that the shards of --shard-hosts are checked against. With it this "
                               "daemon connects to them over TLS, with --tls-cert as its own certificate if that is set."},
    [OPTION_TLS_ALLOW_CALLERS] = {.name = "tls_allow_callers",
                                  .type = OPTIONS_IDENTITIES,
                                  .offset = FIELD(tls_allow_callers),
                                  .value = "NAMES",
                                  .help = "Clients that may call expertd.v1, by the DNS names and URIs of their certificates, "
                                          "separated by commas. In a DNS name, * stands for one complete label "
                                          "(*.engines.example); in a URI, for one part of the path (spiffe://example/engine/*). "
                                          "Without it: every client with a certificate of --tls-client-ca. Health checks need no "
                                          "listed name."},
    [OPTION_TLS_ALLOW_FRONTS] = {.name = "tls_allow_fronts",
                                 .type = OPTIONS_IDENTITIES,
                                 .offset = FIELD(tls_allow_fronts),
                                 .value = "NAMES",
                                 .help = "The same for fronts that may use this daemon as a shard (--role shard)."},
    [OPTION_TLS_ALLOW_SHARDS] = {.name = "tls_allow_shards",
                                 .type = OPTIONS_IDENTITIES,
                                 .offset = FIELD(tls_allow_shards),
                                 .value = "NAMES",
                                 .help = "Names, as above, one of which the certificate of each shard of --shard-hosts must have. "
                                         "Without it: the host of the shard's address."},
    [OPTION_TLS_ALLOW_ADMINS] = {.name = "tls_allow_admins",
                                 .type = OPTIONS_IDENTITIES,
                                 .offset = FIELD(tls_allow_admins),
                                 .value = "NAMES",
                                 .help = "The same for operators on a TCP address of --admin. Without it: nobody."},
    [OPTION_INSECURE] = {.name = "insecure",
                         .type = OPTIONS_BOOL,
                         .offset = FIELD(insecure),
                         .fallback = "false",
                         .value = "[BOOL]",
                         .help =
                             "Allow plain text beyond the loopback: TCP addresses of --listen without TLS, and --http, which has "
                             "neither TLS nor authentication. Otherwise such addresses are refused at the start."},
    [OPTION_DEVICE] =
        {.name = "device",
         .type = OPTIONS_DEVICE,
         .offset = FIELD(device),
         .fallback = "auto",
         .value = "DEVICE",
         .help = "auto, cpu, cuda (every GPU), cuda:0,1 (these GPUs) or sim:N (N GPUs simulated on this CPU, slowly, for tests). "
                 "auto uses one GPU if the CUDA module and a driver are installed, the GPU has compute capability 9 (tested: an "
                 "H100 and an H200), it supports the model, --kernels is auto and --numerics is fastest; otherwise it uses the CPU "
                 "and logs the reason. "
                 "Other GPUs, and several at once, are used only on request; they have been tested in simulation only. A suffix "
                 "/VARIANT (cuda/mma_64) selects one kind of kernel for all products of its dtype."},
    [OPTION_NUMERICS] = {.name = "numerics",
                         .type = OPTIONS_CHOICE,
                         .offset = FIELD(numerics),
                         .fallback = "fastest",
                         .choices = "fastest|portable",
                         .value = "CHOICE",
                         .help =
                             "fastest: the arithmetic in which this machine is fastest: that of its GPU or of AMX (several times "
                             "as fast in prefill) if it has one, each with bits and a numerics_id of its own. portable: the "
                             "bits that all CPUs can compute (numerics_id 1/bf16/cpu), which daemons on unlike machines need "
                             "to give equal results."},
    [OPTION_KERNELS] =
        {.name = "kernels",
         .type = OPTIONS_CHOICE,
         .offset = FIELD(kernels),
         .fallback = "auto",
         .choices = "auto|scalar|scalar_amx|scalar_sm90|avx2|avx512|avx512vnni|avx512bf16|amxint8|amx|neon|neondot|neonbf16",
         .value = "SET",
         .help = "Instruction set of the CPU kernels. auto selects the best one that this CPU supports among scalar, avx2, avx512, "
                 "avx512vnni, avx512bf16, amxint8 and amx (AMX-BF16), or on aarch64 (tested under an emulator only, speed unknown) "
                 "neon, neondot and neonbf16. All of these but amx give the same bits; --numerics portable leaves amx out. Only by "
                 "name: scalar_amx (the bits of amx on any CPU, slowly) and scalar_sm90 (the bits of a Hopper GPU, slowly)."},
    [OPTION_TUNING] = {.name = "tuning",
                       .type = OPTIONS_CHOICE,
                       .offset = FIELD(tuning),
                       .fallback = "heuristic",
                       .choices = "heuristic|cached|tune",
                       .value = "POLICY",
                       .help = "heuristic, cached or tune: how matrix products are divided into work items. cached uses the "
                               "schedules in tuning_cache. tune also measures the missing ones at start, about one second per kind "
                               "of matrix. Results do not depend on it."},
    [OPTION_TUNING_CACHE] =
        {.name = "tuning_cache",
         .type = OPTIONS_TEXT,
         .offset = FIELD(tuning_cache),
         .value = "FILE",
         .help = "File of tuned schedules, for cached and tune. A damaged file, or one from another CPU, is logged and ignored."},
    [OPTION_SHARDS] = {.name = "shards",
                       .type = OPTIONS_NUMBER,
                       .offset = FIELD(shards),
                       .fallback = "1",
                       .least = 0,
                       .greatest = 1024,
                       .value = "N",
                       .help =
                           "Number of shards in this process over which the experts are distributed; 0 is for --shard-hosts only. "
                           "Results do not depend on it."},
    [OPTION_PLACEMENT] = {.name = "placement",
                          .type = OPTIONS_CHOICE,
                          .offset = FIELD(placement),
                          .fallback = "contiguous",
                          .choices = "contiguous|balanced",
                          .value = "POLICY",
                          .help = "contiguous or balanced: how experts are distributed over the shards at start. balanced "
                                  "equalises the load given by placement_counts."},
    [OPTION_PLACEMENT_COUNTS] =
        {.name = "placement_counts",
         .type = OPTIONS_TEXT,
         .offset = FIELD(placement_counts),
         .value = "FILE",
         .help = "JSON file of rows per expert, for placement balanced: {\"layers\": {\"3\": [120, 7, ...]}} with one count for "
                 "each expert of every served layer, or the output of expertctl placement show --json."},
    [OPTION_REPLICAS] = {.name = "replicas",
                         .type = OPTIONS_NUMBER,
                         .offset = FIELD(replicas),
                         .fallback = "0",
                         .least = 0,
                         .greatest = 1 << 16,
                         .value = "N",
                         .help = "Additional copies of the busiest experts in each layer, for placement balanced and for "
                                 "--shard-hosts."},
    [OPTION_MOVE_BYTES_MAX] = {.name = "move_bytes_max",
                               .type = OPTIONS_BYTES,
                               .offset = FIELD(move_bytes_max),
                               .fallback = "1GiB",
                               .least = 1,
                               .greatest = INT64_MAX,
                               .value = "BYTES",
                               .help = "Memory, in addition to the weights, that moving experts between shards may use. On devices "
                                       "it is reserved at start, on each device."},
    [OPTION_EXCHANGE_TIMEOUT_MS] =
        {.name = "exchange_timeout_ms",
         .type = OPTIONS_NUMBER,
         .offset = FIELD(exchange_timeout_ms),
         .fallback = "10000",
         .least = 10,
         .greatest = DAY_MS,
         .value = "MS",
         .help = "Time limit for one batch on devices or on shards of --shard-hosts, in milliseconds. A batch "
                 "that exceeds it fails with SHARD_LOST. Then several devices get a new communicator; a "
                 "single device is lost; a shard is connected again."},
    [OPTION_SHARD_HOSTS] = {.name = "shard_hosts",
                            .type = OPTIONS_HOSTS,
                            .offset = FIELD(shard_hosts),
                            .value = "HOSTS",
                            .help =
                                "Addresses of shards in other processes (expertd --role shard), separated by commas: HOST:PORT, "
                                "or dns:NAME:PORT for every address of a DNS name, which is resolved again every few seconds. "
                                "The experts are then distributed over these shards and --shards of this process, which may "
                                "be 0."},
    [OPTION_COPIES] = {.name = "copies",
                       .type = OPTIONS_NUMBER,
                       .offset = FIELD(copies),
                       .fallback = "1",
                       .least = 1,
                       .greatest = 64,
                       .value = "N",
                       .help = "Number of shards that hold each expert, at least. With 2, no call fails when a shard is lost."},
    [OPTION_PLACEMENT_OWNER] = {.name = "placement_owner",
                                .type = OPTIONS_BOOL,
                                .offset = FIELD(placement_owner),
                                .fallback = "true",
                                .value = "[BOOL]",
                                .help =
                                    "This front may decide which experts the shards of --shard-hosts hold. Of several fronts over "
                                    "the same shards one decides at a time, and the others follow. false: it only follows."},
    [OPTION_REREPLICATE_AFTER] = {.name = "rereplicate_after",
                                  .type = OPTIONS_NUMBER,
                                  .offset = FIELD(rereplicate_after),
                                  .fallback = "30",
                                  .least = 1,
                                  .greatest = 86400,
                                  .value = "SECONDS",
                                  .help =
                                      "When a shard has been lost for so long, the copies that it held are loaded on other "
                                      "shards, as far as these have memory. Experts without any other copy are loaded at once."},
    [OPTION_HEARTBEAT_MS] = {.name = "heartbeat_ms",
                             .type = OPTIONS_NUMBER,
                             .offset = FIELD(heartbeat_ms),
                             .fallback = "25",
                             .least = 5,
                             .greatest = 5000,
                             .value = "MS",
                             .help =
                                 "Time between heartbeats to the shards of --shard-hosts, in milliseconds. After four without an "
                                 "answer a shard gets no rows until it answers again."},
    [OPTION_THREADS] = {.name = "threads",
                        .type = OPTIONS_NUMBER,
                        .offset = FIELD(threads),
                        .least = 1,
                        .greatest = EXPERTD_TEAM_THREADS_MAX,
                        .value = "N",
                        .help = "Compute threads, over all shards together [default: the CPUs that this process may use]."},
    [OPTION_SPIN_US] = {.name = "spin_us",
                        .type = OPTIONS_NUMBER,
                        .offset = FIELD(spin_us),
                        .fallback = "50",
                        .least = 0,
                        .greatest = 1000000,
                        .value = "US",
                        .help = "Microseconds that an idle compute thread spins before it sleeps."},
    [OPTION_MEMORY_MAX] = {.name = "memory_max",
                           .type = OPTIONS_BYTES,
                           .offset = FIELD(memory_max),
                           .fallback = "0",
                           .least = 0,
                           .greatest = INT64_MAX,
                           .value = "BYTES",
                           .help = "Memory limit for the weights, with --role shard for the experts; 0 means the available "
                                   "memory."},
    [OPTION_MAX_MESSAGE_BYTES] = {.name = "max_message_bytes",
                                  .type = OPTIONS_BYTES,
                                  .offset = FIELD(max_message_bytes),
                                  .fallback = "64MiB",
                                  .least = 4 * KIB,
                                  .greatest = MESSAGE_BYTES_GREATEST,
                                  .value = "BYTES",
                                  .help = "Largest message accepted. A larger one is refused; the connection stays open."},
    [OPTION_MAX_BATCH_TOKENS] = {.name = "max_batch_tokens",
                                 .type = OPTIONS_NUMBER,
                                 .offset = FIELD(max_batch_tokens),
                                 .fallback = "4096",
                                 .least = 1,
                                 .greatest = 1 << 20,
                                 .value = "N",
                                 .help = "Maximum number of tokens in a batch."},
    [OPTION_MAX_PIECE_TOKENS] =
        {.name = "max_piece_tokens",
         .type = OPTIONS_NUMBER,
         .offset = FIELD(max_piece_tokens),
         .fallback = "512",
         .least = 1,
         .greatest = 1 << 20,
         .value = "N",
         .help = "A request with more tokens is computed in pieces of this size, and small requests are "
                 "computed between the pieces. At most max_batch_tokens; a lower max_batch_tokens lowers the default."},
    [OPTION_MAX_REQUEST_TOKENS] = {.name = "max_request_tokens",
                                   .type = OPTIONS_NUMBER,
                                   .offset = FIELD(max_request_tokens),
                                   .fallback = "65536",
                                   .least = 1,
                                   .greatest = 1 << 24,
                                   .value = "N",
                                   .help = "Maximum number of tokens in a request."},
    [OPTION_MAX_QUEUE_DELAY_US] = {.name = "max_queue_delay_us",
                                   .type = OPTIONS_NUMBER,
                                   .offset = FIELD(max_queue_delay_us),
                                   .fallback = "0",
                                   .least = 0,
                                   .greatest = 1000000,
                                   .value = "US",
                                   .help = "Microseconds that a batch which is not full may wait for more requests."},
    [OPTION_MAX_TOP_K] = {.name = "max_top_k",
                          .type = OPTIONS_NUMBER,
                          .offset = FIELD(max_top_k),
                          .fallback = "64",
                          .least = 1,
                          .greatest = 1024,
                          .value = "N",
                          .help = "Maximum number of experts per token in a caller's routes."},
    [OPTION_MAX_CALLS] = {.name = "max_calls",
                          .type = OPTIONS_NUMBER,
                          .offset = FIELD(max_calls),
                          .fallback = "1024",
                          .least = 1,
                          .greatest = 1 << 20,
                          .value = "N",
                          .help = "Maximum number of open calls."},
    [OPTION_MAX_STREAMS] = {.name = "max_streams",
                            .type = OPTIONS_NUMBER,
                            .offset = FIELD(max_streams),
                            .fallback = "64",
                            .least = 1,
                            .greatest = 1 << 16,
                            .value = "N",
                            .help = "Maximum number of open streams. Each may be receiving one message."},
    [OPTION_MAX_FRONTS] = {.name = "max_fronts",
                           .type = OPTIONS_NUMBER,
                           .offset = FIELD(max_fronts),
                           .fallback = "8",
                           .least = 1,
                           .greatest = OPTIONS_FRONTS_MAX,
                           .value = "N",
                           .help =
                               "With --role shard: maximum number of fronts connected at a time. Memory for one batch of each is "
                               "set aside from the memory for experts."},
    [OPTION_MAX_INFLIGHT] = {.name = "max_inflight",
                             .type = OPTIONS_NUMBER,
                             .offset = FIELD(max_inflight),
                             .fallback = "16",
                             .least = 1,
                             .greatest = 1 << 16,
                             .value = "N",
                             .help = "Maximum number of unanswered requests per stream."},
    [OPTION_MAX_QUEUE] = {.name = "max_queue",
                          .type = OPTIONS_NUMBER,
                          .offset = FIELD(max_queue),
                          .fallback = "256",
                          .least = 1,
                          .greatest = 1 << 20,
                          .value = "N",
                          .help = "Maximum number of requests admitted and not yet answered. Further requests are refused with a "
                                  "delay after which to retry."},
    [OPTION_MAX_QUEUE_BYTES] =
        {.name = "max_queue_bytes",
         .type = OPTIONS_BYTES,
         .offset = FIELD(max_queue_bytes),
         .fallback = "256MiB",
         .least = 4 * KIB,
         .greatest = 1ull << 50,
         .value = "BYTES",
         .help =
             "Maximum total size of the requests in the queue; at least max_message_bytes. With devices, the same amount of memory "
             "is pinned for messages, so that hidden rows are copied to the device directly from their message."},
    [OPTION_MAX_CONNECTION_SHARE] = {.name = "max_connection_share",
                                     .type = OPTIONS_NUMBER,
                                     .offset = FIELD(max_connection_share),
                                     .fallback = "50",
                                     .least = 1,
                                     .greatest = 100,
                                     .value = "PERCENT",
                                     .help = "Percentage of max_calls, max_streams, read_slots and max_regions that one connection "
                                             "may hold, and of the queue while other connections wait; at least one of each."},
    [OPTION_MAX_CONNECTIONS] = {.name = "max_connections",
                                .type = OPTIONS_NUMBER,
                                .offset = FIELD(max_connections),
                                .fallback = "1024",
                                .least = 1,
                                .greatest = 1 << 20,
                                .value = "N",
                                .help = "Maximum number of connections per address; lower if the process may open fewer files. At "
                                        "the limit, a new connection replaces the oldest one that has sent nothing, or is closed "
                                        "if there is none. A connection that sends nothing is closed after 10 s in any case."},
    [OPTION_READ_SLOTS] =
        {.name = "read_slots",
         .type = OPTIONS_NUMBER,
         .offset = FIELD(read_slots),
         .fallback = "8",
         .least = 1,
         .greatest = 1024,
         .value = "N",
         .help =
             "Number of messages that may be received at the same time. Each counts as max_message_bytes until it is complete."},
    [OPTION_MAX_REGION_BYTES] =
        {.name = "max_region_bytes",
         .type = OPTIONS_BYTES,
         .offset = FIELD(max_region_bytes),
         .fallback = "256MiB",
         .least = 0,
         .greatest = 1ull << 50,
         .value = "BYTES",
         .help = "Maximum size of a memory region shared with a client on this host; 0 disables shared memory."},
    [OPTION_MAX_REGIONS] = {.name = "max_regions",
                            .type = OPTIONS_NUMBER,
                            .offset = FIELD(max_regions),
                            .fallback = "64",
                            .least = 1,
                            .greatest = 4096,
                            .value = "N",
                            .help = "Maximum number of shared memory regions."},
    [OPTION_RPC_THREADS] = {.name = "rpc_threads",
                            .type = OPTIONS_NUMBER,
                            .offset = FIELD(rpc_threads),
                            .fallback = "1",
                            .least = 1,
                            .greatest = OPTIONS_RPC_THREADS_MAX,
                            .value = "N",
                            .help = "Number of threads that serve gRPC."},
    [OPTION_DRAIN_TIMEOUT_MS] = {.name = "drain_timeout_ms",
                                 .type = OPTIONS_NUMBER,
                                 .offset = FIELD(drain_timeout_ms),
                                 .fallback = "30000",
                                 .least = 0,
                                 .greatest = DAY_MS,
                                 .value = "MS",
                                 .help = "Milliseconds from SIGTERM until running requests are cancelled."},
    [OPTION_SEND_TIMEOUT_MS] = {.name = "send_timeout_ms",
                                .type = OPTIONS_NUMBER,
                                .offset = FIELD(send_timeout_ms),
                                .fallback = "30000",
                                .least = 1,
                                .greatest = DAY_MS,
                                .value = "MS",
                                .help =
                                    "A client that does not read its answers for this number of milliseconds loses its stream."},
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
                       .help = "YAML file with the options above, as key: value. Keys may have underscores or dashes."},
    [OPTION_INSPECT] = {.name = "inspect",
                        .type = OPTIONS_SWITCH,
                        .offset = FIELD(inspect),
                        .reach = OPTIONS_FLAG_ONLY,
                        .help = "Describe the model without reading its weights, and exit: layers, formats, sizes on disk and in "
                                "memory for several numbers of shards (or for --shards), and what is refused. The same as "
                                "expertctl inspect."},
    [OPTION_JSON] = {.name = "json",
                     .type = OPTIONS_SWITCH,
                     .offset = FIELD(json),
                     .reach = OPTIONS_FLAG_ONLY,
                     .help = "With --inspect: print one JSON object."},
    [OPTION_VERIFY] = {.name = "verify",
                       .type = OPTIONS_SWITCH,
                       .offset = FIELD(verify),
                       .reach = OPTIONS_FLAG_ONLY,
                       .help = "Read the model as a start would, one expert at a time, and exit: 0 if it is sound, 65 if it is "
                               "refused, has NaN, infinite or absurd values, or differs from --compare-digests."},
    [OPTION_DIGESTS] = {.name = "digests",
                        .type = OPTIONS_TEXT,
                        .offset = FIELD(digests),
                        .reach = OPTIONS_FLAG_ONLY,
                        .value = "FILE",
                        .help = "With --verify: write the digests of all layers and experts to FILE."},
    [OPTION_COMPARE_DIGESTS] = {.name = "compare_digests",
                                .type = OPTIONS_TEXT,
                                .offset = FIELD(compare_digests),
                                .reach = OPTIONS_FLAG_ONLY,
                                .value = "FILE",
                                .help = "With --verify: compare the digests with those that --digests wrote, and name the layers "
                                        "and experts that differ."},
    [OPTION_CHECK_CONFIG] = {.name = "check_config",
                             .type = OPTIONS_SWITCH,
                             .offset = FIELD(check_config),
                             .reach = OPTIONS_FLAG_ONLY,
                             .help = "Check the configuration without opening the model's files, and exit."},
    [OPTION_PRINT_CONFIG] = {.name = "print_config",
                             .type = OPTIONS_SWITCH,
                             .offset = FIELD(print_config),
                             .reach = OPTIONS_FLAG_ONLY,
                             .help = "Print every value and its origin, in a form that --config reads, and exit."},
    [OPTION_VERSION] = {.name = "version",
                        .type = OPTIONS_SWITCH,
                        .offset = FIELD(version),
                        .reach = OPTIONS_FLAG_ONLY,
                        .help = "Print the version and exit."},
    [OPTION_HELP] = {.name = "help",
                     .type = OPTIONS_SWITCH,
                     .offset = FIELD(help),
                     .reach = OPTIONS_FLAG_ONLY,
                     .help = "Print this help and exit."},
};

const struct options_group OPTIONS_GROUP_TITLES[OPTIONS_GROUPS] = {
    {OPTION_MODEL, "Model"},
    {OPTION_LISTEN, "Addresses"},
    {OPTION_TLS_CERT, "TLS"},
    {OPTION_DEVICE, "Machine"},
    {OPTION_SHARD_HOSTS, "Shards in other processes"},
    {OPTION_THREADS, "Compute and memory"},
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

static bool same_name(const char *row_name, const char *name, size_t length) {
    if (strlen(row_name) != length) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        if (row_name[i] != (name[i] == '-' ? '_' : name[i])) {
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
    const char *nearest = suggest_word(name, length, names, count);
    return nearest ? options_find(nearest, strlen(nearest)) : NULL;
}
