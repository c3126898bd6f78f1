// d = a b^T in bf16, two tiles of 64 x 64 a block. One warp loads a ring of slots, four multiply and store; the others only
// have registers to give.
constexpr int BK = 128, BN = 64, STAGES = 3, TILES = 2;
constexpr u32 A_BYTES = 64 * BK, B_BYTES = BN * BK, SHARE = A_BYTES / CLUSTER;
constexpr u32 A_RING = 0, B_RING = STAGES * A_BYTES, STAGING = B_RING + STAGES * B_BYTES, BARRIERS = STAGING + 64 * BN * 2;
constexpr u32 SLOT_BYTES = A_BYTES + B_BYTES;

extern "C" __global__ void __launch_bounds__(384, 1)
gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_d,
     int k_blocks) {
    extern __shared__ __align__(1024) u8 shared[];
    const smem_ptr base = smem_address(shared);
    const smem_ptr full = base + BARRIERS, empty = full + 8 * STAGES;
    const u32 warp = warp_uniform(threadIdx.x / 32), lane = lane_index();
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (warp == 4 && elect_one()) {
        tma_prefetch_map(&map_a);
        for (int s = 0; s < STAGES; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 4 * CLUSTER);
        }
        mbar_init_fence();
    }
    __syncthreads();
    if (CLUSTER > 1) { cluster_arrive_relaxed(); cluster_wait(); }  // set up
    if (warp >= 4) {
        registers_shrink<40>();
        if (warp == 4 && elect_one()) {
            u32 slot = 0, parity = 0;
            #pragma unroll 1
            for (int i = 0; i < TILES * k_blocks; i++) {
                const int k = i % k_blocks * (BK / WIDTH), row = (blockIdx.y * TILES + i / k_blocks) * 64;
                mbar_wait(empty + 8 * slot, parity ^ 1);
                mbar_arrive_expect_tx(full + 8 * slot, SLOT_BYTES);
                // gemm.rs:10:9: load
                if constexpr (CLUSTER == 1) tma_load_2d(base + A_RING + slot * A_BYTES, &map_a, full + 8 * slot, k, row);
                else tma_load_2d_multicast(base + A_RING + slot * A_BYTES + rank * SHARE, &map_a, full + 8 * slot, k, row + rank * (64 / CLUSTER), (1 << CLUSTER) - 1);
                tma_load_2d(base + B_RING + slot * B_BYTES, &map_b, full + 8 * slot, k, blockIdx.x * BN);
                if (++slot == STAGES) { slot = 0; parity ^= 1; }
            }
        }
        __syncwarp();
    } else {
        registers_grow<232>();
        const u32 r = warp * 16 + lane % 16;
        u32 slot = 0, parity = 0, previous = 0;
        #pragma unroll 1
        for (int tile = 0; tile < TILES; tile++) {
            float d[BN / 2];
            #pragma unroll 1
            for (int kb = 0; kb < k_blocks; kb++) {
                mbar_wait(full + 8 * slot, parity);
                // gemm.rs:20:9: multiply
                const u64 a = wgmma_tile(base + A_RING + slot * A_BYTES), b = wgmma_tile(base + B_RING + slot * B_BYTES);
                wgmma_pin(d);
                wgmma_begin();
                #pragma unroll
                for (int step = 0; step < 4; step++) WGMMA(d, a + step * 2, b + step * 2, kb + step != 0);
                wgmma_commit();
                if constexpr (AHEAD) {
                    wgmma_wait<1>();
                    if (kb > 0 && lane < CLUSTER) mbar_arrive_cluster(empty + 8 * previous, lane);
                    previous = slot;
                } else {
                    wgmma_wait<0>();
                    wgmma_pin(d);
                    if (lane < CLUSTER) mbar_arrive_cluster(empty + 8 * slot, lane);  // release
                }
                if (++slot == STAGES) { slot = 0; parity ^= 1; }
            }
            if constexpr (AHEAD) {
                wgmma_wait<0>();  // all
                wgmma_pin(d);
                if (lane < CLUSTER) mbar_arrive_cluster(empty + 8 * previous, lane);
            }
            if (threadIdx.x == 0) tma_store_wait_read<0>();  // before reuse
            named_barrier_sync(1, 128);  // staging is free
            #pragma unroll
            for (int c = 0; c < BN / 16; c++) {
                const float* const v = d + c * 8;
                stmatrix_x4(base + STAGING + r * 128 + ((c * 2 + lane / 16) ^ r % 8) * 16,
                    pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
            }
            async_proxy_fence();
            named_barrier_sync(1, 128);  // staging is full
            if (threadIdx.x == 0) {
                tma_store_2d(&map_d, base + STAGING, blockIdx.x * BN, (blockIdx.y * TILES + tile) * 64);
                tma_store_commit();
            }
            __syncwarp();
        }
        if (threadIdx.x == 0) tma_store_wait_read<0>();  // at the end
    }
    if (CLUSTER > 1) { cluster_arrive_relaxed(); cluster_wait(); }  // at the end
}
