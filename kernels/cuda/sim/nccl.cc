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

#include "kernels/cuda/sim/stream.h"

namespace {

struct group;

struct transfer {
    char *memory;
    size_t bytes;
    int from, to;
    uint64_t turn; // of all between the two
    bool incoming, landed;
};

// Up to its `until`-th operation.
struct stretch {
    cudaStream_t stream;
    uint64_t until;
};

// Both sides of a communicator. Everything here is guarded by sim::driving().
struct clique {
    int ranks;
    std::set<int> joined;
    ncclResult_t error = ncclSuccess;
    std::map<std::tuple<int, int, uint64_t, bool>, std::pair<transfer *, group *>> posted; // by from, to, turn, incoming
    std::vector<stretch> unfinished;                                                       // of those ranks that were aborted
};

enum state { JOINING, READY, ISSUING, LEAVING, LEFT };

} // namespace

struct ncclComm {
    std::shared_ptr<clique> all;
    int rank, device;
    state now = JOINING;
    int answers_left = 0; // "in progress", before what is under way is done
    ncclResult_t error = ncclSuccess;
    size_t taken = 0;                               // of the device's memory
    std::map<std::pair<int, bool>, uint64_t> turns; // transfers so far, by peer and direction
    std::vector<std::shared_ptr<group>> issuing, groups;
};

namespace {

using moment = std::chrono::steady_clock::time_point;

// What one communicator sends and receives in one group, in one stream.
struct group {
    ncclComm *comm; // null once that is gone: what is left is done
    cudaStream_t stream;
    uint64_t place = 0; // in its stream
    std::vector<transfer> transfers;
    bool arrived = false, finished = false, stuck = false, late = false;
    moment arrived_at;
};

constexpr int ANSWERS = 2;

// Never destroyed: an abort may go on while the process exits.
std::set<ncclComm *> &communicators() { // that are there
    static std::set<ncclComm *> &all = *new std::set<ncclComm *>;
    return all;
}

std::map<std::string, std::weak_ptr<clique>> &cliques() {
    static std::map<std::string, std::weak_ptr<clique>> &all = *new std::map<std::string, std::weak_ptr<clique>>;
    return all;
}

// A thread's open group.
struct opened {
    int depth = 0;
    ncclResult_t failed = ncclSuccess;
    std::vector<ncclComm *> joining, leaving;
    std::vector<std::shared_ptr<group>> groups;
};
thread_local opened open_group;
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
        return fail(ncclInvalidArgument, "a communicator that is not there, or is no more");
    }
    return ncclSuccess;
}

// ---- groups in their streams

void land(clique &all, group &g) {
    for (transfer &t : g.transfers) {
        transfer &other = *all.posted.at({t.from, t.to, t.turn, !t.incoming}).first;
        if (!t.landed) {
            memcpy(t.incoming ? t.memory : other.memory, t.incoming ? other.memory : t.memory, t.bytes);
            t.landed = other.landed = true;
        }
    }
    g.finished = true;
}

// Is the other side of every transfer in a group that its stream has reached? Drives those streams that have not.
bool all_there(const clique &all, const group &g) {
    for (const transfer &t : g.transfers) {
        auto found = all.posted.find({t.from, t.to, t.turn, !t.incoming});
        if (found == all.posted.end()) {
            return false;
        }
        group *other = found->second.second;
        if (!other->arrived) {
            (void)other->stream->drive(other->stream->taken);
        }
        if (!other->arrived || other->stuck || other->late) {
            return false;
        }
    }
    return true;
}

// The fault where two sides do not fit, "" where they do.
std::string misfit(const clique &all, const group &g) {
    for (const transfer &t : g.transfers) {
        auto found = all.posted.find({t.from, t.to, t.turn, !t.incoming});
        bool there = found != all.posted.end();
        if (there && found->second.first->bytes != t.bytes) {
            const transfer &other = *found->second.first;
            char text[160];
            snprintf(text, sizeof text, "rank %d sends %zu bytes to rank %d, which expects %zu", t.from,
                     t.incoming ? other.bytes : t.bytes, t.to, t.incoming ? t.bytes : other.bytes);
            return text;
        }
        bool freed = !sim::lies_on_device(t.memory, t.bytes, g.stream->device);
        freed =
            freed || (there && !sim::lies_on_device(found->second.first->memory, t.bytes, found->second.second->stream->device));
        if (freed && !t.landed) {
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
    bool there = all_there(all, g);
    if (g.finished) {
        return sim::DONE; // by the stream that was driven
    }
    std::string fault = misfit(all, g);
    if (!fault.empty()) {
        return {sim::break_device(g.stream->device, fault), false};
    }
    if (g.stuck || g.late || !there) {
        return sim::BLOCKED;
    }
    land(all, g);
    return sim::DONE;
}

// The group gets its place in its stream.
void issue(ncclComm &comm) {
    for (std::shared_ptr<group> &g : comm.issuing) {
        g->stream->unsettled--;
        (void)g->stream->put([g] { return try_group(*g); });
        g->place = g->stream->taken;
        comm.groups.push_back(g);
    }
    comm.issuing.clear();
}

void take_memory(ncclComm &comm) {
    if (!sim::nccl_takes(comm.device, &comm.taken)) {
        comm.error = ncclUnhandledCudaError;
    }
}

void post(const std::shared_ptr<group> &g) {
    ncclComm &comm = *g->comm;
    if (comm.turns.empty()) {
        take_memory(comm);
    }
    for (transfer &t : g->transfers) {
        int peer = t.incoming ? t.from : t.to;
        t.turn = comm.turns[{peer, t.incoming}]++;
        comm.all->posted[{t.from, t.to, t.turn, t.incoming}] = {&t, g.get()};
    }
    g->stream->unsettled++;
    comm.issuing.push_back(g);
    comm.now = ISSUING;
    comm.answers_left = ANSWERS;
}

// What is no more in any stream is forgotten.
void forget_finished(ncclComm &comm) {
    std::vector<std::shared_ptr<group>> left;
    for (std::shared_ptr<group> &g : comm.groups) {
        bool landed = g->finished;
        for (const transfer &t : g->transfers) {
            auto other = comm.all->posted.find({t.from, t.to, t.turn, !t.incoming});
            landed = landed && (other == comm.all->posted.end() || other->second.second->finished);
        }
        for (const transfer &t : landed ? g->transfers : std::vector<transfer>{}) {
            comm.all->posted.erase({t.from, t.to, t.turn, t.incoming});
        }
        if (!landed) {
            left.push_back(g);
        }
    }
    comm.groups = left;
}

void end(ncclComm *comm) {
    for (std::vector<std::shared_ptr<group>> *list : {&comm->issuing, &comm->groups}) {
        for (std::shared_ptr<group> &g : *list) {
            for (const transfer &t : g->transfers) {
                comm->all->posted.erase({t.from, t.to, t.turn, t.incoming});
                if (t.incoming && !t.landed && sim::lies_on_device(t.memory, t.bytes, comm->device)) {
                    memset(t.memory, 0xff, t.bytes); // nobody knows what an abort leaves there
                }
            }
            g->stream->unsettled -= list == &comm->issuing;
            g->comm = nullptr;
        }
    }
    communicators().erase(comm);
    sim::nccl_gives_back(comm->device, comm->taken);
    delete comm;
    for (auto at = cliques().begin(); at != cliques().end();) {
        at = at->second.expired() ? cliques().erase(at) : std::next(at);
    }
}

ncclResult_t close_group() {
    opened closed = open_group;
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
    int device = sim::chosen();
    if (config->blocking != 0 || rank < 0 || rank >= ranks) {
        return fail(ncclInvalidArgument, config->blocking ? "a blocking communicator, whose calls would hang with a peer"
                                                          : "a rank that is none of the communicator's");
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
        return fail(ncclInvalidUsage, "a rank joins twice, or the ranks disagree on how many they are");
    }
    if (sim::planted("ncclNeverJoins") == cudaSuccess) {
        all->joined.insert(rank);
    }
    if (sim::planted("ncclJoin") != cudaSuccess) {
        all->error = ncclSystemError;
    }
    *comm = new ncclComm{all, rank, device, JOINING, ANSWERS, ncclSuccess, 0, {}, {}, {}};
    take_memory(**comm);
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
    bool open = comm->now == JOINING && (int)comm->all->joined.size() < comm->all->ranks;
    if (open || (comm->now != READY && comm->now != LEFT && comm->answers_left-- > 0)) {
        *out = ncclInProgress;
        return ncclSuccess;
    }
    issue(*comm);
    forget_finished(*comm);
    comm->now = comm->now == LEAVING || comm->now == LEFT ? LEFT : READY;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    lock held(sim::driving());
    ncclResult_t result = check(comm);
    if (result != ncclSuccess || (result = plant("ncclCommFinalize")) != ncclSuccess) {
        return result;
    }
    if (comm->now != READY) {
        return fail(ncclInvalidUsage, "a communicator is finalised while something is in progress, or twice");
    }
    comm->now = LEAVING;
    comm->answers_left = ANSWERS;
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
    if (comm->now != LEFT) {
        return fail(ncclInvalidUsage, "a communicator is destroyed that was not finalised: it would wait for its peers");
    }
    end(comm);
    return ncclSuccess;
}

// What the rank had under way is over. `out`: of the last rank, what has to be done before everything that belongs to all is freed.
static ncclResult_t abort_rank(ncclComm_t comm, std::vector<stretch> *out) {
    lock held(sim::driving());
    ncclResult_t result = check(comm);
    if (result != ncclSuccess) {
        return result;
    }
    if (open_group.depth > 0) {
        return fail(ncclInvalidUsage, "a communicator is aborted inside a group");
    }
    std::vector<stretch> &unfinished = comm->all->unfinished;
    for (const std::shared_ptr<group> &g : comm->groups) {
        if (!g->finished) {
            unfinished.push_back({g->stream, g->place});
        }
    }
    if (comm->all.use_count() == 1) {
        out->swap(unfinished);
    }
    end(comm);
    return ncclSuccess;
}

static bool is_done(const stretch &s) {
    lock held(sim::driving());
    return s.stream->drive(s.until);
}

// As the real one, whose stream waits for an event of the user's: the last rank's call synchronises with those of all.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    std::vector<stretch> unfinished;
    ncclResult_t result = abort_rank(comm, &unfinished);
    for (const stretch &s : unfinished) {
        while (!is_done(s)) {
            std::this_thread::sleep_for(std::chrono::milliseconds(SIM_NCCL_LOOK_MS));
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
    if (comm->now != READY) {
        return fail(ncclInvalidUsage, "a transfer while the communicator is in progress: ask ncclCommGetAsyncError first");
    }
    if (peer < 0 || peer >= comm->all->ranks || peer == comm->rank || t.bytes == 0) {
        return fail(ncclInvalidArgument, t.bytes == 0 ? "a transfer of no bytes: both sides leave those out" : "no such peer");
    }
    if (stream->device != comm->device) {
        return fail(ncclInvalidArgument, "a stream of another device than the communicator's");
    }
    if (!sim::lies_on_device(t.memory, t.bytes, comm->device)) {
        return fail(ncclInvalidArgument, "memory that is not the communicator's device's");
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
