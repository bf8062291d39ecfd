#include "kernels/cuda/sim/nccl.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "kernels/cuda/sim/machine.h"
#include "kernels/cuda/sim/stream.h"

namespace {

struct group;

struct transfer {
    char *memory;
    size_t bytes;
    int from, to;
    uint64_t number; // counts the transfers between two ranks in one direction
    bool incoming, completed;
};

// The operations of a stream up to number `until`.
struct stream_position {
    cudaStream_t stream;
    uint64_t until;
};

// What the ranks of a communicator share. Guarded by sim::driving(), like everything here.
struct clique {
    int ranks;
    std::set<int> joined;
    ncclResult_t error = ncclSuccess;
    std::map<std::tuple<int, int, uint64_t, bool>, std::pair<transfer *, group *>> posted; // by from, to, number, incoming
    std::vector<stream_position> unfinished;                                               // work of aborted ranks
};

enum comm_phase { JOINING, READY, ISSUING, LEAVING, LEFT };

} // namespace

struct ncclComm {
    std::shared_ptr<clique> all;
    int rank, device;
    comm_phase phase = JOINING;
    int polls_left = 0; // polls that still return ncclInProgress
    ncclResult_t error = ncclSuccess;
    size_t memory = 0;                                  // allocated on the device
    std::map<std::pair<int, bool>, uint64_t> transfers; // number so far, by peer and direction
    std::vector<std::shared_ptr<group>> issuing, groups;
};

namespace {

using time_point = std::chrono::steady_clock::time_point;

// The transfers of one communicator in one group and one stream.
struct group {
    ncclComm *comm; // null after it was destroyed: then the group is done
    cudaStream_t stream;
    uint64_t position = 0; // in its stream
    std::vector<transfer> transfers;
    bool arrived = false, finished = false, stuck = false, late = false;
    time_point arrived_at;
};

constexpr int POLLS = 2; // that return ncclInProgress before an operation is done

// The existing communicators. Never destroyed, since an abort may still run while the process exits.
std::set<ncclComm *> &communicators() {
    static std::set<ncclComm *> &all = *new std::set<ncclComm *>;
    return all;
}

std::map<std::string, std::weak_ptr<clique>> &cliques() {
    static std::map<std::string, std::weak_ptr<clique>> &all = *new std::map<std::string, std::weak_ptr<clique>>;
    return all;
}

// A thread's open group.
struct open_state {
    int depth = 0;
    ncclResult_t failed = ncclSuccess;
    std::vector<ncclComm *> joining, leaving;
    std::vector<std::shared_ptr<group>> groups;
};
thread_local open_state open_group;
thread_local std::string last_text;

ncclResult_t fail(ncclResult_t result, const std::string &text) {
    last_text = text;
    if (open_group.depth > 0) {
        open_group.failed = result;
    }
    return result;
}

ncclResult_t plant(const char *call) {
    return sim::planted(call) == cudaSuccess ? ncclSuccess : fail(ncclSystemError, std::string("a planted failure of ") + call);
}

ncclResult_t check(ncclComm_t comm) {
    if (communicators().count(comm) == 0) {
        return fail(ncclInvalidArgument, "the communicator does not exist");
    }
    return ncclSuccess;
}

// ---- groups in their streams

void complete(clique &all, group &g) {
    for (transfer &t : g.transfers) {
        transfer &other = *all.posted.at({t.from, t.to, t.number, !t.incoming}).first;
        if (!t.completed) {
            memcpy(t.incoming ? t.memory : other.memory, t.incoming ? other.memory : t.memory, t.bytes);
            t.completed = other.completed = true;
        }
    }
    g.finished = true;
}

// Has every transfer's peer been posted, in a group that its stream has reached? Drives the streams that have not reached theirs.
bool all_peers_ready(const clique &all, const group &g) {
    for (const transfer &t : g.transfers) {
        auto found = all.posted.find({t.from, t.to, t.number, !t.incoming});
        if (found == all.posted.end()) {
            return false;
        }
        group *other = found->second.second;
        if (!other->arrived) {
            (void)other->stream->drive(other->stream->put_count);
        }
        if (!other->arrived || other->stuck || other->late) {
            return false;
        }
    }
    return true;
}

// A message if the two sides of a transfer do not match, otherwise "".
std::string mismatch(const clique &all, const group &g) {
    for (const transfer &t : g.transfers) {
        auto found = all.posted.find({t.from, t.to, t.number, !t.incoming});
        bool posted = found != all.posted.end();
        if (posted && found->second.first->bytes != t.bytes) {
            const transfer &other = *found->second.first;
            char text[160];
            snprintf(text, sizeof text, "rank %d sends %zu bytes to rank %d, which expects %zu", t.from,
                     t.incoming ? other.bytes : t.bytes, t.to, t.incoming ? t.bytes : other.bytes);
            return text;
        }
        bool freed = !sim::is_allocated_on(t.memory, t.bytes, g.stream->device);
        freed =
            freed || (posted && !sim::is_allocated_on(found->second.first->memory, t.bytes, found->second.second->stream->device));
        if (freed && !t.completed) {
            return "the memory of a transfer was freed before it took place";
        }
    }
    return "";
}

void arrive(group &g) {
    g.arrived = true;
    g.arrived_at = std::chrono::steady_clock::now();
    g.stuck = sim::planted("ncclStuck") != cudaSuccess;
    g.late = sim::planted("ncclLate") != cudaSuccess;
    if (sim::planted("ncclTransfer") != cudaSuccess) {
        g.comm->all->error = ncclRemoteError;
        g.stuck = true;
    }
}

sim::outcome try_group(group &g) {
    if (g.comm && !g.arrived) {
        arrive(g);
    }
    if (g.late && std::chrono::steady_clock::now() - g.arrived_at > std::chrono::milliseconds(SIM_NCCL_LATE_MS)) {
        g.late = false;
    }
    if (!g.comm || g.finished) {
        return sim::DONE;
    }
    clique &all = *g.comm->all;
    bool ready = all_peers_ready(all, g);
    if (g.finished) {
        return sim::DONE; // completed by the peer's stream
    }
    std::string fault = mismatch(all, g);
    if (!fault.empty()) {
        return {sim::break_device(g.stream->device, fault), false};
    }
    if (g.stuck || g.late || !ready) {
        return sim::BLOCKED;
    }
    complete(all, g);
    return sim::DONE;
}

// Gives the posted groups their positions in their streams.
void issue(ncclComm &comm) {
    for (std::shared_ptr<group> &g : comm.issuing) {
        g->stream->unsettled--;
        (void)g->stream->put([g] { return try_group(*g); });
        g->position = g->stream->put_count;
        comm.groups.push_back(g);
    }
    comm.issuing.clear();
}

void allocate_memory(ncclComm &comm) {
    if (!sim::nccl_allocate(comm.device, &comm.memory)) {
        comm.error = ncclUnhandledCudaError;
    }
}

void post(const std::shared_ptr<group> &g) {
    ncclComm &comm = *g->comm;
    if (comm.transfers.empty()) {
        allocate_memory(comm);
    }
    for (transfer &t : g->transfers) {
        int peer = t.incoming ? t.from : t.to;
        t.number = comm.transfers[{peer, t.incoming}]++;
        comm.all->posted[{t.from, t.to, t.number, t.incoming}] = {&t, g.get()};
    }
    g->stream->unsettled++;
    comm.issuing.push_back(g);
    comm.phase = ISSUING;
    comm.polls_left = POLLS;
}

// Removes groups whose transfers have completed on both sides.
void remove_finished(ncclComm &comm) {
    std::vector<std::shared_ptr<group>> left;
    for (std::shared_ptr<group> &g : comm.groups) {
        bool completed = g->finished;
        for (const transfer &t : g->transfers) {
            auto other = comm.all->posted.find({t.from, t.to, t.number, !t.incoming});
            completed = completed && (other == comm.all->posted.end() || other->second.second->finished);
        }
        for (const transfer &t : completed ? g->transfers : std::vector<transfer>{}) {
            comm.all->posted.erase({t.from, t.to, t.number, t.incoming});
        }
        if (!completed) {
            left.push_back(g);
        }
    }
    comm.groups = left;
}

void end(ncclComm *comm) {
    for (std::vector<std::shared_ptr<group>> *list : {&comm->issuing, &comm->groups}) {
        for (std::shared_ptr<group> &g : *list) {
            for (const transfer &t : g->transfers) {
                comm->all->posted.erase({t.from, t.to, t.number, t.incoming});
                if (t.incoming && !t.completed && sim::is_allocated_on(t.memory, t.bytes, comm->device)) {
                    memset(t.memory, 0xff, t.bytes); // undefined after an abort
                }
            }
            g->stream->unsettled -= list == &comm->issuing;
            g->comm = nullptr;
        }
    }
    communicators().erase(comm);
    sim::nccl_free(comm->device, comm->memory);
    delete comm;
    for (auto at = cliques().begin(); at != cliques().end();) {
        at = at->second.expired() ? cliques().erase(at) : std::next(at);
    }
}

ncclResult_t close_group() {
    open_state closed = open_group;
    open_group = {};
    ncclResult_t planted = plant("ncclGroupEnd");
    if (planted != ncclSuccess || closed.failed != ncclSuccess) {
        return planted != ncclSuccess ? planted : closed.failed;
    }
    for (std::shared_ptr<group> &g : closed.groups) {
        post(g);
    }
    return closed.groups.empty() && closed.joining.empty() && closed.leaving.empty() ? ncclSuccess : ncclInProgress;
}

using lock = std::lock_guard<std::recursive_mutex>;

} // namespace

int sim_nccl_is_there(void) {
    return sim::planted("ncclLibrary") == cudaSuccess;
}

size_t sim_nccl_communicators(void) {
    lock held(sim::driving());
    return communicators().size();
}

ncclResult_t ncclGetVersion(int *version) {
    *version = 22809;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const TEXTS[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return TEXTS[result];
}

const char *ncclGetLastError(ncclComm_t) {
    return last_text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static uint64_t number;
    lock held(sim::driving());
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "communicator %llu", (unsigned long long)++number);
    return plant("ncclGetUniqueId");
}

ncclResult_t ncclGroupStart(void) {
    open_group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    lock held(sim::driving());
    if (open_group.depth == 0) {
        return fail(ncclInvalidUsage, "ncclGroupEnd without a group");
    }
    return --open_group.depth > 0 ? ncclSuccess : close_group();
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    lock held(sim::driving());
    *comm = nullptr;
    int device = sim::current_device();
    if (config->blocking != 0 || rank < 0 || rank >= ranks) {
        return fail(ncclInvalidArgument, config->blocking ? "a blocking communicator: its calls would hang with a missing peer"
                                                          : "the rank is not below the number of ranks");
    }
    ncclResult_t planted = plant("ncclCommInitRankConfig");
    if (planted != ncclSuccess) {
        return planted;
    }
    std::shared_ptr<clique> all = cliques()[id.internal].lock();
    if (!all) {
        all = std::make_shared<clique>();
        all->ranks = ranks;
        cliques()[id.internal] = all;
    }
    if (all->ranks != ranks || all->joined.count(rank) > 0) {
        return fail(ncclInvalidUsage, "a rank joins twice, or the ranks disagree on their number");
    }
    if (sim::planted("ncclNeverJoins") == cudaSuccess) {
        all->joined.insert(rank);
    }
    if (sim::planted("ncclJoin") != cudaSuccess) {
        all->error = ncclSystemError;
    }
    *comm = new ncclComm{all, rank, device, JOINING, POLLS, ncclSuccess, 0, {}, {}, {}};
    allocate_memory(**comm);
    communicators().insert(*comm);
    if (open_group.depth > 0) {
        open_group.joining.push_back(*comm);
    }
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out) {
    lock held(sim::driving());
    ncclResult_t result = check(comm);
    if (result != ncclSuccess) {
        return result;
    }
    *out = comm->error != ncclSuccess ? comm->error : comm->all->error;
    if (*out != ncclSuccess) {
        last_text = comm->error != ncclSuccess ? "Cuda failure 2 'out of memory'" : "a planted error of a communicator";
        return ncclSuccess;
    }
    bool open = comm->phase == JOINING && (int)comm->all->joined.size() < comm->all->ranks;
    if (open || (comm->phase != READY && comm->phase != LEFT && comm->polls_left-- > 0)) {
        *out = ncclInProgress;
        return ncclSuccess;
    }
    issue(*comm);
    remove_finished(*comm);
    comm->phase = comm->phase == LEAVING || comm->phase == LEFT ? LEFT : READY;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    lock held(sim::driving());
    ncclResult_t result = check(comm);
    if (result != ncclSuccess || (result = plant("ncclCommFinalize")) != ncclSuccess) {
        return result;
    }
    if (comm->phase != READY) {
        return fail(ncclInvalidUsage, "a communicator is finalised during an operation, or twice");
    }
    comm->phase = LEAVING;
    comm->polls_left = POLLS;
    if (open_group.depth > 0) {
        open_group.leaving.push_back(comm);
    }
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    lock held(sim::driving());
    ncclResult_t result = check(comm);
    if (result != ncclSuccess) {
        return result;
    }
    if (comm->phase != LEFT) {
        return fail(ncclInvalidUsage, "a communicator is destroyed before it is finalised: it would wait for its peers");
    }
    end(comm);
    return ncclSuccess;
}

// Ends the rank's operations. *out: for the last rank, the work that must end before the shared state is freed.
static ncclResult_t abort_rank(ncclComm_t comm, std::vector<stream_position> *out) {
    lock held(sim::driving());
    ncclResult_t result = check(comm);
    if (result != ncclSuccess) {
        return result;
    }
    if (open_group.depth > 0) {
        return fail(ncclInvalidUsage, "a communicator is aborted inside a group");
    }
    std::vector<stream_position> &unfinished = comm->all->unfinished;
    for (const std::shared_ptr<group> &g : comm->groups) {
        if (!g->finished) {
            unfinished.push_back({g->stream, g->position});
        }
    }
    if (comm->all.use_count() == 1) {
        out->swap(unfinished);
    }
    end(comm);
    return ncclSuccess;
}

static bool is_done(const stream_position &s) {
    lock held(sim::driving());
    return s.stream->drive(s.until);
}

// As in NCCL, whose internal stream waits for an event of the user's stream: the last rank's call waits for the
// streams of all ranks.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    std::vector<stream_position> unfinished;
    ncclResult_t result = abort_rank(comm, &unfinished);
    for (const stream_position &s : unfinished) {
        while (!is_done(s)) {
            std::this_thread::sleep_for(std::chrono::milliseconds(SIM_NCCL_POLL_MS));
        }
    }
    return result;
}

static ncclResult_t transfer_one(transfer t, int peer, ncclComm_t comm, cudaStream_t stream) {
    lock held(sim::driving());
    ncclResult_t result = check(comm);
    if (result != ncclSuccess || (result = plant(t.incoming ? "ncclRecv" : "ncclSend")) != ncclSuccess) {
        return result;
    }
    if (comm->phase != READY) {
        return fail(ncclInvalidUsage, "a transfer while the communicator is in progress: call ncclCommGetAsyncError first");
    }
    if (peer < 0 || peer >= comm->all->ranks || peer == comm->rank || t.bytes == 0) {
        return fail(ncclInvalidArgument, t.bytes == 0 ? "a transfer of no bytes: both sides must omit it" : "no such peer");
    }
    if (stream->device != comm->device) {
        return fail(ncclInvalidArgument, "a stream of another device than the communicator's");
    }
    if (!sim::is_allocated_on(t.memory, t.bytes, comm->device)) {
        return fail(ncclInvalidArgument, "memory that is not on the communicator's device");
    }
    bool alone = open_group.depth == 0;
    open_group.depth += alone;
    t.from = t.incoming ? peer : comm->rank;
    t.to = t.incoming ? comm->rank : peer;
    for (std::shared_ptr<group> &g : open_group.groups) {
        if (g->comm == comm && g->stream == stream) {
            g->transfers.push_back(t);
            return alone ? ncclGroupEnd() : ncclSuccess;
        }
    }
    auto g = std::make_shared<group>();
    g->comm = comm;
    g->stream = stream;
    g->transfers.push_back(t);
    open_group.groups.push_back(g);
    return alone ? ncclGroupEnd() : ncclSuccess;
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
    return transfer_one({(char *)from, count, 0, 0, 0, false, false}, peer, comm, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
    return transfer_one({(char *)to, count, 0, 0, 0, true, false}, peer, comm, stream);
}
