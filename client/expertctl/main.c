// expertctl: the command-line client of expertd.
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mapped.h"
#include "base/process/standard_output.h"
#include "base/process/surroundings.h"
#include "client/c/admin.h"
#include "client/c/client.h"
#include "client/expertctl/commands.h"
#include "client/expertctl/options.h"
#include "client/expertctl/print/json_out.h"

enum { EXIT_DATA = 65, EXIT_UNREACHABLE = 69, EXIT_REFUSED = 70, EXIT_INTERRUPTED = 130 }; // 130 as in shells: 128 + SIGINT

// A bad file is 65, regardless of the code of its error. A daemon's error about a shape comes with a refusal, and is 70.
static int exit_code(err_t e, const struct proto_error_text *refusal) {
    if (refusal) {
        return EXIT_REFUSED;
    }
    switch (e.code) {
    case EXPERTD_ERR_USAGE:
    case EXPERTD_ERR_UNAVAILABLE:
    case EXPERTD_ERR_INTERNAL:
        return err_exit_code(e.code);
    case EXPERTD_ERR_DEADLINE:
        return EXIT_UNREACHABLE;
    case EXPERTD_ERR_NOMEM:
    case EXPERTD_ERR_MALFORMED: // the daemon's answer cannot be read
    case EXPERTD_ERR_WEIGHTS_CHANGED:
        return EXIT_REFUSED;
    case EXPERTD_ERR_CANCELLED:
        return EXIT_INTERRUPTED;
    default:
        return EXIT_DATA;
    }
}

static void print_error_json(const struct err_copy *error, const struct proto_error_text *refusal, const char *address) {
    json_t *object =
        json_pack("{s:{s:o, s:o, s:o}}", "error", "reason",
                  json_text(refusal && refusal->reason[0] ? refusal->reason : expertd_err_name(error->code)), "message",
                  json_text(error->message), "field", error->field[0] ? json_text(error->field) : json_null());
    if (object && address) {
        json_object_set_new(object, "address", json_text(address));
        json_object_set_new(object, "reachable", json_boolean(refusal != NULL));
    }
    if (object && refusal && refusal->retry_after_ms >= 0) {
        json_object_set_new(json_object_get(object, "error"), "retry_after_ms", json_integer(refusal->retry_after_ms));
    }
    err_t ignored = json_print_take(object); // the message is printed to standard error as well
    (void)ignored;
}

static void print_error(const struct err_copy *error, const struct proto_error_text *refusal, bool forward) {
    if (!refusal) {
        fprintf(stderr, "expertctl: %s\n", error->message);
        return;
    }
    fprintf(stderr, "expertctl: the daemon refuses with %s: %s\n", refusal->reason, error->message);
    if (error->field[0]) {
        fprintf(stderr, "  field: %s\n", error->field);
    }
    if (refusal->retry_after_ms >= 0) {
        fprintf(stderr, "  try again in %.1f s\n", (double)refusal->retry_after_ms / 1e3);
    }
    if (error->code == EXPERTD_ERR_TOO_LARGE && forward) {
        fprintf(stderr, "  --split N sends N tokens in each call; the answer's bytes stay the same\n");
    }
}

// refusal: the daemon's error, or NULL. address: the daemon's, or NULL if none was called.
static int report(err_t e, const struct proto_error_text *refusal, const char *address, const struct ctl_options *options) {
    struct err_copy error;
    err_save(e, &error);
    if (options->json) {
        print_error_json(&error, refusal, address);
    }
    print_error(&error, refusal, options->command == COMMAND_FORWARD);
    return exit_code(e, refusal);
}

// Finds the admin address in the daemon's description.
static FALLIBLE find_admin(struct client *client, const struct ctl_options *options, char out[ADDRESS_TEXT_MAX]) {
    struct client_description description;
    char named[ADMIN_ADDRESS_MAX];
    TRY(client_describe(client, "", options->timeout_us, &description));
    err_t e = client_admin_address(&description, named);
    client_description_deinit(&description);
    return err_is(e) ? e : ctl_admin_address(client_address(client), named, out);
}

static bool uses_admin_socket(const struct ctl_options *options) {
    return options->command == COMMAND_PLACEMENT || options->command == COMMAND_SHARDS || options->command == COMMAND_DRAIN;
}

// The same also while the daemon loads: until then it describes nothing.
static FALLIBLE find_admin_early(struct client *client, const struct ctl_options *options, char out[ADDRESS_TEXT_MAX]) {
    err_t e = find_admin(client, options, out);
    if (e.code != EXPERTD_ERR_LOADING || ctl_admin_default(client_address(client), out)) {
        return e.code == EXPERTD_ERR_LOADING ? OK : e;
    }
    return err_context(e, "until it has loaded, the daemon does not tell its admin address, give it with --admin");
}

// On error *out is the client that failed, if any: the caller reports its refusal.
static FALLIBLE open_client(const struct ctl_options *options, const char *address, struct client **out) {
    char admin[ADDRESS_TEXT_MAX];
    if (uses_admin_socket(options) && options->admin) {
        return client_create_tls(options->admin, &options->tls, out);
    }
    TRY(client_create_tls(address, &options->tls, out));
    if (!uses_admin_socket(options)) {
        return OK;
    }
    TRY(find_admin_early(*out, options, admin));
    client_destroy(*out);
    return client_create_tls(admin, &options->tls, out);
}

static int run_command(const struct ctl_options *options, const char *address) {
    struct client *client = NULL;
    bool serving = true;
    err_t e = open_client(options, address, &client);
    if (!err_is(e)) {
        switch (options->command) {
        case COMMAND_MODELS:
            e = command_models(client, options);
            break;
        case COMMAND_STATUS:
            e = command_status(client, options, &serving);
            break;
        case COMMAND_FORWARD:
            e = command_forward(client, options);
            break;
        case COMMAND_COMPARE:
            e = command_compare(client, options);
            break;
        case COMMAND_PLACEMENT:
            e = command_placement(client, options);
            break;
        case COMMAND_SHARDS:
            e = command_shards(client, options);
            break;
        case COMMAND_DRAIN:
            e = command_drain(client, options);
            break;
        default:
            INVARIANT(!"a command that calls the daemon");
        }
    }
    int code = serving ? 0 : EXIT_REFUSED;
    if (err_is(e)) {
        code = report(e, client ? client_refusal(client) : NULL, client ? client_address(client) : NULL, options);
    }
    client_destroy(client);
    return code;
}

// The client of the admin socket; *out NULL if there is none: top then does not show the shards.
static FALLIBLE open_top_admin(const struct ctl_options *options, const char *address, struct client **out) {
    char admin[ADDRESS_TEXT_MAX];
    *out = NULL;
    if (options->admin) {
        return client_create_tls(options->admin, &options->tls, out);
    }
    struct client *client;
    TRY(client_create_tls(address, &options->tls, &client));
    bool found = !err_is(find_admin(client, options, admin));
    client_destroy(client);
    return found ? client_create_tls(admin, &options->tls, out) : OK;
}

static int run_top(const struct ctl_options *options, const char *address) {
    struct client *admin;
    err_t e = open_top_admin(options, address, &admin);
    e = err_is(e) ? e : command_top(address, admin, options);
    int code = err_is(e) ? report(e, admin ? client_refusal(admin) : NULL, address, options) : 0;
    client_destroy(admin);
    return code;
}

static int run_bench(const struct ctl_options *options, const char *address) {
    struct bench_outcome outcome;
    err_t e = command_bench(address, options, &outcome);
    if (!err_is(e)) {
        return outcome.code;
    }
    bool refused = outcome.refusal.reason[0] != '\0',
         asked = refused || e.code == EXPERTD_ERR_UNAVAILABLE || e.code == EXPERTD_ERR_DEADLINE;
    struct ctl_options error_options = *options;
    error_options.json = options->json && !outcome.reported; // standard output gets one object only
    return report(e, refused ? &outcome.refusal : NULL, asked ? address : NULL, &error_options);
}

static int run(struct ctl_options *options) {
    const struct ctl_environment environment = {
        .address = getenv("EXPERTD_ADDRESS"),
        .runtime_dir = getenv("XDG_RUNTIME_DIR"),
        .tls = getenv("EXPERTD_TLS"),
        .tls_ca = getenv("EXPERTD_TLS_CA"),
        .tls_cert = getenv("EXPERTD_TLS_CERT"),
        .tls_key = getenv("EXPERTD_TLS_KEY"),
        .tls_server_name = getenv("EXPERTD_TLS_SERVER_NAME"),
    };
    char address[ADDRESS_TEXT_MAX];
    if (options->command == COMMAND_HELP) {
        ctl_print_help(stdout);
        return 0;
    }
    if (options->command == COMMAND_VERSION) {
        printf("expertctl %s\n", EXPERTD_VERSION);
        return 0;
    }
    if (options->command == COMMAND_INSPECT) {
        return report(command_inspect(options), NULL, NULL, options);
    }
    err_t e = ctl_address(options, &environment, address);
    e = err_is(e) ? e : ctl_tls(&environment, options);
    if (err_is(e)) {
        return report(e, NULL, NULL, options);
    }
    if (options->command == COMMAND_TOP) {
        return run_top(options, address);
    }
    return options->command == COMMAND_BENCH ? run_bench(options, address) : run_command(options, address);
}

int main(int argc, char **argv) {
    struct ctl_options options = {0};
    err_t e = surroundings_prepare();
    if (err_is(e)) {
        return report(e, NULL, NULL, &options);
    }
    client_tune_process();
    err_t unguarded =
        mapped_install_handler(); // without it, a mapped file that shrinks ends the program with SIGBUS and no message
    (void)unguarded;
    e = ctl_options_parse(argc, argv, &options);
    if (err_is(e)) {
        return report(e, NULL, NULL, &options);
    }
    const int code = run(&options);
    e = code == 0 ? standard_output_flush() : OK;
    return err_is(e) ? report(e, NULL, NULL, &options) : code;
}
