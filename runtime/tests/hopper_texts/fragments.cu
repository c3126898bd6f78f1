// d = a b in f32 for one tile of 64 x 64 over k = 64: A through registers, B with k across its rows, one box of four axes.
extern "C" __global__ void __launch_bounds__(128)
fragments(const u16* __restrict__ a, const __grid_constant__ TensorMap map_b, float* __restrict__ d) {
    extern __shared__ __align__(1024) u8 shared[];
    const smem_ptr base = smem_address(shared), bar = base + 64 * 128;
    if (threadIdx.x == 0) {
        mbar_init(bar, 1);
        mbar_init_fence();
        mbar_expect_tx(bar, 64 * 128);
        tma_load_4d(base, &map_b, bar, 0, 0, 0, 0);
        mbar_arrive(bar);
    }
    __syncthreads();
    const int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
    const u32* const from = (const u32*)(a + row * 64 + column);
    float sums[32];
    mbar_wait(bar, 0);
    const u64 b = wgmma_tile_across(base, 64 * 128);
    u32 f[4][4];
    for (int k = 0; k < 4; k++) {
        f[k][0] = from[k * 8]; f[k][1] = from[k * 8 + 8 * 32]; f[k][2] = from[k * 8 + 4]; f[k][3] = from[k * 8 + 8 * 32 + 4];
    }
    wgmma_pin(sums);
    wgmma_begin();
    #pragma unroll
    for (int k = 0; k < 4; k++) WGMMA(sums, f[k][0], f[k][1], f[k][2], f[k][3], b + k * 128, k != 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(sums);
    for (int i = 0; i < 32; i++) d[(row + i % 4 / 2 * 8) * 64 + i / 4 * 8 + column + i % 2] = sums[i];
}
