// group_quantise (emit_kernels.rs:1:5)
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

// bf16: nearest even; NaN becomes 0x7fff.
DEV float bf16_to_f32(bf16 x) { return __uint_as_float((u32)x << 16); }
// The same for a tile that waits in registers: the compiler may not share the result between uses, so what stays alive is
// the packed bf16 and not twice as many f32.
DEV float widen(bf16 x) { float r; asm volatile("mov.b32 %0, {0, %1};" : "=f"(r) : "h"(x)); return r; }
DEV bf16 f32_to_bf16(float x) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
template <int N> DEV void f32_to_bf16(bf16 (&r)[N], const float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(reinterpret_cast<u32*>(r)[i / 2]) : "f"(x[i + 1]), "f"(x[i]));
    }
}

// fp8 by the hardware's conversions (compute capability 8.9 and newer): nearest even, saturating, NaN stays NaN.
DEV u16 f32_to_e4m3_x2(float lo, float hi) {
    u16 r; asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo)); return r;
}
DEV u16 f32_to_e5m2_x2(float lo, float hi) {
    u16 r; asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo)); return r;
}
DEV e4m3 f32_to_e4m3(float x) { return (e4m3)f32_to_e4m3_x2(x, 0.0f); }
DEV e5m2 f32_to_e5m2(float x) { return (e5m2)f32_to_e5m2_x2(x, 0.0f); }
DEV float e4m3_to_f32(e4m3 x) {
    float r;
    asm("{\n .reg .b32 h;\n .reg .b16 lo, hi;\n cvt.rn.f16x2.e4m3x2 h, %1;\n mov.b32 {lo, hi}, h;\n cvt.f32.f16 %0, lo;\n}"
        : "=f"(r) : "h"((u16)x));
    return r;
}
DEV float e5m2_to_f32(e5m2 x) {
    float r;
    asm("{\n .reg .b32 h;\n .reg .b16 lo, hi;\n cvt.rn.f16x2.e5m2x2 h, %1;\n mov.b32 {lo, hi}, h;\n cvt.f32.f16 %0, lo;\n}"
        : "=f"(r) : "h"((u16)x));
    return r;
}
template <int N> DEV void f32_to_e4m3(e4m3 (&r)[N], const float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i + 3 < N; i += 4) {
        reinterpret_cast<u32*>(r)[i / 4] = f32_to_e4m3_x2(x[i], x[i + 1]) | (u32)f32_to_e4m3_x2(x[i + 2], x[i + 3]) << 16;
    }
    if constexpr (N == 2) reinterpret_cast<u16*>(r)[0] = f32_to_e4m3_x2(x[0], x[1]);
}
template <int N> DEV void f32_to_e5m2(e5m2 (&r)[N], const float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i + 3 < N; i += 4) {
        reinterpret_cast<u32*>(r)[i / 4] = f32_to_e5m2_x2(x[i], x[i + 1]) | (u32)f32_to_e5m2_x2(x[i + 2], x[i + 3]) << 16;
    }
    if constexpr (N == 2) reinterpret_cast<u16*>(r)[0] = f32_to_e5m2_x2(x[0], x[1]);
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

extern "C" __global__ void __launch_bounds__(128)
group_quantise(const bf16* __restrict__ x, e4m3* __restrict__ q, float* __restrict__ sf) {
    const int tid = threadIdx.x;
    const int lane16 = tid % 16, group16 = tid / 16;
    const int bx = blockIdx.x;
    bf16 xf[56];

    // emit_kernels.rs:2:5: parallel [1, 7168]
    const bf16* const x_at = x + bx * 7168;
    #pragma unroll
    for (int s = 0; s < 7; ++s) {
        const int j = (s * 128 + tid) * 8;
        alignas(16) bf16 x_v[8];
        ld_global<16>(x_v, x_at + j);
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            xf[s * 8 + v] = x_v[v];
        }
    }
    float amax[7];

    // emit_kernels.rs:3:5: reduce_absmax along axis 2
    #pragma unroll
    for (int r = 0; r < 7; ++r) {
        float acc = __uint_as_float(0x7fc00000u);
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            acc = fmaxf(acc, fabsf(bf16_to_f32(xf[r * 8 + v])));
        }
        amax[r] = reduce_lanes<Max, 16>(acc);
    }
    float inv[7];

    // emit_kernels.rs:4:5: parallel [1, 56]
    float* const sf_at = sf + bx * 56;
    #pragma unroll
    for (int r = 0; r < 7; ++r) {
        const int g = r * 8 + group16;
        const float t = __fdiv_rn(fmaxf(amax[r], 0.0001f), 448.0f);
        if (lane16 == 0) sf_at[g] = t;
        inv[r] = __frcp_rn(t);
    }

    // emit_kernels.rs:5:5: parallel [1, 7168]
    e4m3* const q_at = q + bx * 7168;
    #pragma unroll
    for (int s = 0; s < 7; ++s) {
        const int j = (s * 128 + tid) * 8;
        alignas(16) float q_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            const float xf_i = widen(xf[s * 8 + v]);
            q_v[v] = xf_i * inv[s];
        }
        alignas(16) e4m3 q_n[8];
        f32_to_e4m3(q_n, q_v);
        st<8>(q_at + j, q_n);
    }
}
