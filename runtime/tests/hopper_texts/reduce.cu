// Sums of columns over the rows that the two blocks of a cluster take: the second sends its sums to the first.
constexpr u32 INBOX = 0, BARRIER = 128 * 16;

extern "C" __global__ void __launch_bounds__(128)
reduce(const float* __restrict__ x, float* __restrict__ y, int rows) {
    extern __shared__ __align__(1024) u8 shared[];
    const smem_ptr base = smem_address(shared);
    const u32 rank = cluster_rank();
    if (threadIdx.x == 0) {
        mbar_init(base + BARRIER, 1);
        mbar_init_fence();
        mbar_arrive_expect_tx(base + BARRIER, rank == 0 ? 128 * 16 : 0);
    }
    __syncthreads();
    cluster_arrive_relaxed();
    cluster_wait();
    float4 sum = {0, 0, 0, 0};
    for (int r = rank; r < rows; r += 2) {
        const float* const row = x + r * 512 + threadIdx.x * 4;
        sum.x += global_load(row); sum.y += global_load(row + 1); sum.z += global_load(row + 2); sum.w += global_load(row + 3);
    }
    // reduce.rs:5:9: send
    if (rank == 1) {
        cluster_send4(cluster_address(base + INBOX + threadIdx.x * 16, 0), cluster_address(base + BARRIER, 0), sum);
    } else {
        mbar_wait(base + BARRIER, 0);
        const float4 other = smem_load4(base + INBOX + threadIdx.x * 16);
        float* const out = y + threadIdx.x * 4;
        out[0] = sum.x + other.x; out[1] = sum.y + other.y; out[2] = sum.z + other.z; out[3] = sum.w + other.w;
    }
}
