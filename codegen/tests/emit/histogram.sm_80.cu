// histogram (emit_kernels.rs:1:5)
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

// Smaller and larger integer.
template <typename T> DEV T min_of(T a, T b) { return b < a ? b : a; }
template <typename T> DEV T max_of(T a, T b) { return a < b ? b : a; }

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

extern "C" __global__ void __launch_bounds__(256)
histogram(const int* __restrict__ x, u32* __restrict__ counts, int* __restrict__ first, u32 limit, int n) {
    extern __shared__ __align__(16) u8 shared[];
    const int tid = threadIdx.x;
    const int lane = tid % 32, warp = tid / 32;
    u32* const hist = (u32*)shared;

    // emit_kernels.rs:2:5: parallel [256]
    {
        const int i = tid * 4;
        const bool ok = i < 256;
        alignas(16) u32 hist_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            hist_v[v] = 0u;
        }
        if (ok) st<16>(hist + i, hist_v);
    }
    __syncthreads();  // hist: written at emit_kernels.rs:2:5, updated next

    // emit_kernels.rs:3:5: spread
    for (int i = tid; i < n; i += 256) {
        const int x_i = x[i];
        const int bin = min_of<int>(max_of<int>(x_i, 0), 255);
        atomicAdd(&hist[bin], 1u);
    }
    __syncthreads();  // hist: updated at emit_kernels.rs:3:5, read next

    // emit_kernels.rs:4:5: parallel [256]
    {
        const int i = tid * 4;
        const bool ok = i < 256;
        alignas(16) u32 hist_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) hist_v[v] = 0;
        if (ok) ld<16>(hist_v, hist + i);
        alignas(16) u32 counts_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            counts_v[v] = hist_v[v];
        }
        if (ok) st<16>(counts + i, counts_v);
    }
    int* const partials = (int*)(shared + 1024);

    // emit_kernels.rs:5:5: first of 256
    int first2 = 256;
    for (int b = tid; b < 256; b += 256) {
        const u32 hist_i = hist[b];
        if (hist_i >= limit) {
            first2 = b;
            break;
        }
    }
    first2 = reduce_lanes<Min, 32>(first2);
    if (lane == 0) partials[warp] = first2;
    __syncthreads();  // partial results of all warps
    const int found = reduce_warps<Min, 8>(partials);
    if (tid == 0) first[0] = found;
}
