// claim (emit_kernels.rs:1:5)
// Names of the element types. Floats narrower than 32 bits are bit patterns; arithmetic happens in f32.
typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef unsigned int u32;
typedef long long i64; typedef unsigned long long u64;
typedef u16 bf16; typedef u16 f16; typedef u8 e4m3; typedef u8 e5m2; typedef u8 e8m0;
#define DEV __device__ __forceinline__

// Several consecutive elements at once, in pieces of W bytes. The address is a multiple of W.
template <int W> struct Piece;
template <> struct Piece<2> { typedef u16 type; };
template <> struct Piece<4> { typedef u32 type; };
template <> struct Piece<8> { typedef uint2 type; };
template <> struct Piece<16> { typedef uint4 type; };

// Any memory.
template <int W, int N, typename T> DEV void ld(T (&r)[N], const T* p) {
    typedef typename Piece<W>::type P;
    #pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / W); i++) reinterpret_cast<P*>(r)[i] = reinterpret_cast<const P*>(p)[i];
}
template <int W, int N, typename T> DEV void st(T* p, const T (&r)[N]) {
    typedef typename Piece<W>::type P;
    #pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / W); i++) reinterpret_cast<P*>(p)[i] = reinterpret_cast<const P*>(r)[i];
}

// Global memory that no thread writes during the kernel: loads through the read-only path. With a condition the load is
// predicated instead of branched around, so that loads of several steps stay in flight together; the rest reads zero.
DEV void ld_global_v1h(u16& a, const void* p) { asm("ld.global.nc.u16 %0, [%1];" : "=h"(a) : "l"(p)); }
DEV void ld_global_v1(u32& a, const void* p) { asm("ld.global.nc.u32 %0, [%1];" : "=r"(a) : "l"(p)); }
DEV void ld_global_v2(uint2& a, const void* p) {
    asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(a.x), "=r"(a.y) : "l"(p));
}
DEV void ld_global_v4(uint4& a, const void* p) {
    asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w) : "l"(p));
}
DEV void ld_global_v1h_if(u16& a, const void* p, bool ok) {
    asm("{\n .reg .pred q;\n setp.ne.b32 q, %2, 0;\n mov.u16 %0, 0;\n @q ld.global.nc.u16 %0, [%1];\n}"
        : "=h"(a) : "l"(p), "r"((int)ok));
}
DEV void ld_global_v1_if(u32& a, const void* p, bool ok) {
    asm("{\n .reg .pred q;\n setp.ne.b32 q, %2, 0;\n mov.u32 %0, 0;\n @q ld.global.nc.u32 %0, [%1];\n}"
        : "=r"(a) : "l"(p), "r"((int)ok));
}
DEV void ld_global_v2_if(uint2& a, const void* p, bool ok) {
    asm("{\n .reg .pred q;\n setp.ne.b32 q, %3, 0;\n mov.u32 %0, 0;\n mov.u32 %1, 0;\n"
        " @q ld.global.nc.v2.u32 {%0, %1}, [%2];\n}" : "=r"(a.x), "=r"(a.y) : "l"(p), "r"((int)ok));
}
DEV void ld_global_v4_if(uint4& a, const void* p, bool ok) {
    asm("{\n .reg .pred q;\n setp.ne.b32 q, %5, 0;\n mov.u32 %0, 0;\n mov.u32 %1, 0;\n mov.u32 %2, 0;\n mov.u32 %3, 0;\n"
        " @q ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w) : "l"(p), "r"((int)ok));
}
template <int W, int N, typename T> DEV void ld_global(T (&r)[N], const T* p) {
    #pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / W); i++) {
        const u8* at = reinterpret_cast<const u8*>(p) + i * W;
        if constexpr (W == 16) ld_global_v4(reinterpret_cast<uint4*>(r)[i], at);
        else if constexpr (W == 8) ld_global_v2(reinterpret_cast<uint2*>(r)[i], at);
        else if constexpr (W == 4) ld_global_v1(reinterpret_cast<u32*>(r)[i], at);
        else ld_global_v1h(reinterpret_cast<u16*>(r)[i], at);
    }
}
template <int W, int N, typename T> DEV void ld_global_if(T (&r)[N], const T* p, bool ok) {
    #pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / W); i++) {
        const u8* at = reinterpret_cast<const u8*>(p) + i * W;
        if constexpr (W == 16) ld_global_v4_if(reinterpret_cast<uint4*>(r)[i], at, ok);
        else if constexpr (W == 8) ld_global_v2_if(reinterpret_cast<uint2*>(r)[i], at, ok);
        else if constexpr (W == 4) ld_global_v1_if(reinterpret_cast<u32*>(r)[i], at, ok);
        else ld_global_v1h_if(reinterpret_cast<u16*>(r)[i], at, ok);
    }
}

// Smaller and larger integer. Signed ones are compared as unsigned: ptxas 13.0 makes one instruction of max(max(a, -b), c)
// and loses the sign of b; with unsigned numbers it does not.
template <typename T> DEV T min_of(T a, T b) { return b < a ? b : a; }
template <typename T> DEV T max_of(T a, T b) { return a < b ? b : a; }
template <> DEV int min_of<int>(int a, int b) { return (int)(min_of((u32)a ^ 1u << 31, (u32)b ^ 1u << 31) ^ 1u << 31); }
template <> DEV int max_of<int>(int a, int b) { return (int)(max_of((u32)a ^ 1u << 31, (u32)b ^ 1u << 31) ^ 1u << 31); }

// Combining values of several threads. Lanes combine neighbours first, then pairs of pairs; every lane gets the result.
struct Sum {
    static DEV float apply(float a, float b) { return a + b; }
    static DEV int apply(int a, int b) { return (int)((u32)a + (u32)b); }
    static DEV u32 apply(u32 a, u32 b) { return a + b; }
    static DEV i64 apply(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
};
struct Max {
    static DEV float apply(float a, float b) { return fmaxf(a, b); }
    template <typename T> static DEV T apply(T a, T b) { return max_of(a, b); }
};
struct Min {
    static DEV float apply(float a, float b) { return fminf(a, b); }
    template <typename T> static DEV T apply(T a, T b) { return min_of(a, b); }
};
struct And { template <typename T> static DEV T apply(T a, T b) { return (T)(a & b); } };
struct Or { template <typename T> static DEV T apply(T a, T b) { return (T)(a | b); } };

DEV float shfl_xor(float x, int o) { return __shfl_xor_sync(0xffffffffu, x, o); }
DEV int shfl_xor(int x, int o) { return __shfl_xor_sync(0xffffffffu, x, o); }
DEV u32 shfl_xor(u32 x, int o) { return __shfl_xor_sync(0xffffffffu, x, o); }
DEV i64 shfl_xor(i64 x, int o) { return __shfl_xor_sync(0xffffffffu, x, o); }
DEV u8 shfl_xor(u8 x, int o) { return (u8)__shfl_xor_sync(0xffffffffu, (u32)x, o); }
DEV i8 shfl_xor(i8 x, int o) { return (i8)__shfl_xor_sync(0xffffffffu, (int)x, o); }
DEV bool shfl_xor(bool x, int o) { return __shfl_xor_sync(0xffffffffu, (int)x, o) != 0; }

template <class Op, int LANES, typename T> DEV T reduce_lanes(T x) {
    #pragma unroll
    for (int o = 1; o < LANES; o *= 2) x = Op::apply(x, shfl_xor(x, o));
    return x;
}
// Partial results of all warps, from shared memory; an odd last one passes through a level.
template <class Op, int WARPS, typename T> DEV T reduce_warps(const T* partials) {
    T r[WARPS];
    #pragma unroll
    for (int i = 0; i < WARPS; i++) r[i] = partials[i];
    #pragma unroll
    for (int o = 1; o < WARPS; o *= 2) {
        #pragma unroll
        for (int i = 0; i + o < WARPS; i += 2 * o) r[i] = Op::apply(r[i], r[i + o]);
    }
    return r[0];
}

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

extern "C" __global__ void __launch_bounds__(128, 8)
claim(const float* __restrict__ x, u32* __restrict__ columns, u32* __restrict__ count, float limit, int n) {
    extern __shared__ __align__(16) u8 shared[];
    const int tid = threadIdx.x;
    const int lane = tid % 32, warp = tid / 32;
    const int bx = blockIdx.x;
    u32 found = 0u;
    u32* const partials = (u32*)shared;

    // emit_kernels.rs:3:5: spread, numbered
    {
        const int lo = 0;
        const int hi = n;
        u32 seen = found;
        int turn = 0;
        const float* const src = x + bx * n;
        const int start = lo - (int)(((u64)(src + lo) & 15) / 4);
        alignas(16) float next[16];
        const int from = warp * 512 + tid % 32 * 4;
        claim_load<4, 4>(next, src, start + from, lo, hi, start >= lo && start + 2048 <= hi);
        u32* const columns_at = columns + bx * n;
        for (int base = start; base < hi; base += 2048) {
            alignas(16) float held[16];
            ld<16>(held, next);
            if (base + 2048 < hi) {
                claim_load<4, 4>(next, src, base + 2048 + from, lo, hi, base + 2048 >= lo && base + 2048 + 2048 <= hi);
            }
            u32 kept = 0;
            #pragma unroll
            for (int e = 0; e < 16; ++e) {
                const int i = base + from + e / 4 * 128 + e % 4;
                const bool t2 = held[e] > limit;
                if (t2) kept |= 1u << e;
            }
            if (base < lo || base + 2048 > hi) {
                #pragma unroll
                for (int e = 0; e < 16; ++e) {
                    const int i = base + from + e / 4 * 128 + e % 4;
                    if (i < lo || i >= hi) kept &= ~(1u << e);
                }
            }
            u32 first[4];
            claim_numbers<4, 4, 4>(kept, seen, partials + turn, first);
            turn ^= 4;
            #pragma unroll
            for (int e = 0; e < 16; ++e) {
                const int i = base + from + e / 4 * 128 + e % 4;
                if (kept >> e & 1) {
                    const bool t2 = held[e] > limit;
                    const u32 number = first[e / 4]++;
                    if (true) {
                        if (number < (u32)n) columns_at[(i64)number] = (u32)i;
                    }
                }
            }
        }
        found = seen;
    }
    const u32 found_now = found;
    if (tid == 0) count[bx] = found_now;
}
