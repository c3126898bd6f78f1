// moments (emit_kernels.rs:1:5)
// Names of the element types. Floats narrower than 32 bits are bit patterns; arithmetic happens in f32.
typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef unsigned int u32;
typedef long long i64; typedef unsigned long long u64;
typedef u16 bf16; typedef u16 f16; typedef u8 e4m3; typedef u8 e5m2; typedef u8 e8m0;
#define DEV __device__ __forceinline__

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

// f16: nearest even, overflow gives infinity; NaN becomes 0x7fff.
DEV float f16_to_f32(f16 x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x)); return r; }
DEV f16 f32_to_f16(float x) { f16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
template <int N> DEV void f32_to_f16(f16 (&r)[N], const float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(reinterpret_cast<u32*>(r)[i / 2]) : "f"(x[i + 1]), "f"(x[i]));
    }
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

extern "C" __global__ void __launch_bounds__(64)
moments(const f16* __restrict__ x, float* __restrict__ y, int n) {
    const int tid = threadIdx.x;
    const int lane32 = tid % 32, group32 = tid / 32;
    const int bx = blockIdx.x;
    float first[2];
    float second[2];

    // emit_kernels.rs:2:5: parallel [4]
    #pragma unroll
    for (int r = 0; r < 2; ++r) {
        first[r] = 0.0f;
    }

    // emit_kernels.rs:3:5: parallel [4]
    #pragma unroll
    for (int r = 0; r < 2; ++r) {
        second[r] = 0.0f;
    }

    // emit_kernels.rs:9:5: loop
    for (int c = 0; c < (n + 255) / 256; ++c) {
        float t[16];

        // emit_kernels.rs:5:5: parallel [4, 256]
        const f16* const x_at = x + bx * 4 * n + c * 256;
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int i = r * 2 + group32;
            const int j = lane32 * 8;
            alignas(16) f16 x_v[8];
            ld_global_if<16>(x_v, x_at + i * n + j, c * 256 + j < n);
            #pragma unroll
            for (int v = 0; v < 8; ++v) {
                t[r * 8 + v] = f16_to_f32(x_v[v]);
            }
        }
        float a[2];

        // emit_kernels.rs:6:5: reduce_sum along axis 1
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            float acc = -0.0f;
            #pragma unroll
            for (int v = 0; v < 8; ++v) {
                acc = acc + t[r * 8 + v];
            }
            a[r] = reduce_lanes<Sum, 32>(acc);
        }
        float sq[16];

        // emit_kernels.rs:7:5: parallel [4, 256]
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            #pragma unroll
            for (int v = 0; v < 8; ++v) {
                sq[r * 8 + v] = t[r * 8 + v] * t[r * 8 + v];
            }
        }
        float q[2];

        // emit_kernels.rs:8:5: reduce_sum along axis 1
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            float acc = -0.0f;
            #pragma unroll
            for (int v = 0; v < 8; ++v) {
                acc = acc + sq[r * 8 + v];
            }
            q[r] = reduce_lanes<Sum, 32>(acc);
        }

        // emit_kernels.rs:9:5: parallel [4]
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float first_i = first[r];
            first[r] = first_i + a[r];
            const float second_i = second[r];
            second[r] = second_i + q[r];
        }
    }

    // emit_kernels.rs:10:5: parallel [4]
    float* const y_at = y + bx * 4 * 2;
    float* const y_at2 = y + bx * 4 * 2 + 1;
    #pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int i = r * 2 + group32;
        if (lane32 == 0) y_at[i * 2] = first[r];
        if (lane32 == 0) y_at2[i * 2] = second[r];
    }
}
