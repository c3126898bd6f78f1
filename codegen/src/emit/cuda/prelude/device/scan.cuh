// Exclusive scan of one value a thread over the block, in thread order, and the total. One barrier if there are several
// warps. `none` leaves the other side of Op unchanged.
DEV float shfl_up(float x, int o) { return __shfl_up_sync(0xffffffffu, x, o); }
DEV int shfl_up(int x, int o) { return __shfl_up_sync(0xffffffffu, x, o); }
DEV u32 shfl_up(u32 x, int o) { return __shfl_up_sync(0xffffffffu, x, o); }
DEV i64 shfl_up(i64 x, int o) { return __shfl_up_sync(0xffffffffu, x, o); }
template <class Op, int WARPS, typename T> DEV T scan_block(T x, T none, T* partials, T& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T through = x;
    #pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const T left = shfl_up(through, o);
        if (lane >= o) through = Op::apply(left, through);
    }
    T before = shfl_up(through, 1);
    if (lane == 0) before = none;
    if constexpr (WARPS == 1) {
        total = __shfl_sync(0xffffffffu, through, 31);
        return before;
    } else {
        if (lane == 31) partials[warp] = through;
        __syncthreads();
        T base = none;
        total = none;
        #pragma unroll
        for (int i = 0; i < WARPS; i++) {
            if (i == warp) base = total;
            total = Op::apply(total, partials[i]);
        }
        return Op::apply(base, before);
    }
}
