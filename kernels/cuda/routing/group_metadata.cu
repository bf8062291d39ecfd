// expertd_make_group_metadata on a GPU (kernels/include/expertd/kernels/group_metadata.h): the row tiles to visit for each group,
// computed from group sizes in device memory.
//
// One block of 256 threads, each for a run of consecutive groups: it adds up its sizes, then its visits. Between them one thread
// sums the 256 runs, which takes little time compared with the launch. All counts are integers.
#include <ptx.cuh>

#include "kernels/cuda/common/launchers.h"

namespace {

constexpr int THREADS = 256;

struct shared {
    int run[THREADS + 1]; // each thread's sum, later the sum of all threads before it
};

// Replaces run[t] by the sum of all runs before t. Returns the sum of all runs.
__device__ int sum_runs(shared &s, int own_sum) {
    s.run[threadIdx.x] = own_sum;
    ptx::sync_block();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int t = 0; t < THREADS; t++) {
            const int value = s.run[t];
            s.run[t] = sum;
            sum += value;
        }
        s.run[THREADS] = sum;
    }
    ptx::sync_block();
    return s.run[THREADS];
}

struct visits {
    int first, count; // row tiles of a group
};

__device__ visits visits_of(const expertd_device_group_metadata &a, int group) {
    const int rows = (int)a.tile_rows, m_tiles = (int)a.rows / rows + ((int)a.rows % rows != 0);
    const int begin = a.offsets[group], end = a.offsets[group + 1], first = begin / rows;
    if (m_tiles == 0 || (begin == end && !a.visit_empty)) {
        return {0, 0};
    }
    return begin == end ? visits{first < m_tiles ? first : m_tiles - 1, 1} : visits{first, (end - 1) / rows + 1 - first};
}

__global__ void __launch_bounds__(THREADS) expertd_group_metadata(const __grid_constant__ expertd_device_group_metadata a) {
    auto &s = *(shared *)ptx::shared_base();
    const int groups = (int)a.groups, run_length = (groups + THREADS - 1) / THREADS, first = (int)threadIdx.x * run_length;
    const int last = first + run_length < groups ? first + run_length : groups;
    int sum = 0;
    for (int g = first; g < last; g++) {
        sum += a.sizes[g];
    }
    const int total = sum_runs(s, sum);
    for (int g = first, offset = s.run[threadIdx.x]; g < last; offset += a.sizes[g++]) {
        a.offsets[g] = offset;
    }
    if (threadIdx.x == 0) {
        a.offsets[groups] = total;
    }
    ptx::sync_block(); // the offsets are written, and the runs have been read
    const int begin = (int)a.first_group, end = begin + (int)a.local_groups;
    const int from = first > begin ? first : begin, until = last < end ? last : end;
    int count = 0;
    for (int g = from; g < until; g++) {
        count += visits_of(a, g).count;
    }
    const int tiles = sum_runs(s, count);
    int at = s.run[threadIdx.x];
    for (int g = from; g < until; g++) {
        const visits v = visits_of(a, g);
        for (int i = 0; i < v.count; i++, at++) {
            a.ids[at] = g;
            a.tiles[at] = v.first + i;
        }
    }
    if (threadIdx.x == 0) {
        *a.tile_count = tiles;
    }
}

} // namespace

int cuda_group_metadata(const struct expertd_device_group_metadata *a, struct CUstream_st *stream) {
    // One block: the work is small. 1 KiB of shared memory, 32 registers.
    LAUNCH(expertd_group_metadata, dim3(1), dim3(THREADS), sizeof(shared), stream, *a);
    return cudaGetLastError();
}
