// Numbers of chosen elements, in ascending order. A block goes through elements in chunks; in a chunk each warp has
// STEPS * 32 * VEC consecutive ones, a lane VEC consecutive ones a step.
//
// Elements of one lane, the first at `at`; outside of lo..hi they are zero. `whole` says that all of the block's exist and
// that `p + at` is a multiple of 16 bytes.
template <int VEC, int STEPS, typename T, typename I>
DEV void claim_load(T (&r)[VEC * STEPS], const T* p, I at, I lo, I hi, bool whole) {
    if (whole) {
        #pragma unroll
        for (int s = 0; s < STEPS; s++) ld_global<16>(reinterpret_cast<T (&)[VEC]>(r[s * VEC]), p + at + s * 32 * VEC);
    } else {
        // Constant distances from one address: as `p[at + ..]` NVRTC 13.0 added 2^32 to an index on its way to 64 bits.
        const T* const own = p + at;
        #pragma unroll
        for (int e = 0; e < VEC * STEPS; e++) {
            const int d = e / VEC * (32 * VEC) + e % VEC;
            r[e] = at + d >= lo && at + d < hi ? own[d] : (T)0;
        }
    }
}
// For each step the number of its first chosen element; `kept` has a bit an element, `seen` counts. `counts` are those of
// all warps. One barrier if there are several.
template <int VEC, int STEPS, int WARPS> DEV void claim_numbers(u32 kept, u32& seen, u32* counts, u32 (&first)[STEPS]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 step = VEC * STEPS == 32 && STEPS == 1 ? 0xffffffffu : (1u << VEC) - 1;
    u32 run = 0;
    #pragma unroll
    for (int s = 0; s < STEPS; s++) first[s] = 0;
    if (__any_sync(0xffffffffu, kept != 0)) {
        // Two steps a word.
        u32 own[(STEPS + 1) / 2], through[(STEPS + 1) / 2];
        #pragma unroll
        for (int w = 0; w < (STEPS + 1) / 2; w++) own[w] = 0;
        #pragma unroll
        for (int s = 0; s < STEPS; s++) own[s / 2] |= (u32)__popc(kept >> (s * VEC) & step) << s % 2 * 16;
        #pragma unroll
        for (int w = 0; w < (STEPS + 1) / 2; w++) {
            through[w] = own[w];
            #pragma unroll
            for (int o = 1; o < 32; o *= 2) {
                const u32 left = __shfl_up_sync(0xffffffffu, through[w], o);
                if (lane >= o) through[w] += left;
            }
        }
        #pragma unroll
        for (int s = 0; s < STEPS; s++) {
            first[s] = run + ((through[s / 2] - own[s / 2]) >> s % 2 * 16 & 0xffffu);
            run += __shfl_sync(0xffffffffu, through[s / 2], 31) >> s % 2 * 16 & 0xffffu;
        }
    }
    u32 before = seen;
    if constexpr (WARPS == 1) {
        seen += run;
    } else {
        if (lane == 0) counts[warp] = run;
        __syncthreads();
        u32 all = lane < WARPS ? counts[lane] : 0;
        #pragma unroll
        for (int o = 1; o < WARPS; o *= 2) {
            const u32 left = __shfl_up_sync(0xffffffffu, all, o);
            if (lane >= o) all += left;
        }
        before += __shfl_sync(0xffffffffu, all, warp) - run;
        seen += __shfl_sync(0xffffffffu, all, WARPS - 1);
    }
    #pragma unroll
    for (int s = 0; s < STEPS; s++) first[s] += before;
}
