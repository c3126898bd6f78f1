// casts (emit_kernels.rs:1:5)
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

// f16: nearest even, overflow gives infinity; NaN becomes 0x7fff.
DEV float f16_to_f32(f16 x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x)); return r; }
DEV f16 f32_to_f16(float x) { f16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
template <int N> DEV void f32_to_f16(f16 (&r)[N], const float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(reinterpret_cast<u32*>(r)[i / 2]) : "f"(x[i + 1]), "f"(x[i]));
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

// e8m0: the exponent of a power of two; 255 is NaN, 0 is 2^-127.
DEV e8m0 f32_to_e8m0(float x) { return (e8m0)(__float_as_uint(x) >> 23); }
DEV float e8m0_to_f32(e8m0 x) {
    return __uint_as_float(x == 0 ? 0x00400000u : x == 255 ? 0x7fffffffu : (u32)x << 23);
}

// Float to integer: towards zero, saturating, NaN gives zero.
DEV int f32_to_i32(float x) { return __float2int_rz(x); }
DEV u32 f32_to_u32(float x) { return __float2uint_rz(x); }
DEV i64 f32_to_i64(float x) { return x == x ? __float2ll_rz(x) : 0; }
DEV i8 f32_to_i8(float x) { const int v = __float2int_rz(x); return (i8)(v < -128 ? -128 : v > 127 ? 127 : v); }
DEV u8 f32_to_u8(float x) { const u32 v = __float2uint_rz(x); return (u8)(v > 255 ? 255 : v); }

// Integers as f32 with the last bit set where they do not fit, so that narrower floats round as from the integer itself.
DEV float i32_to_odd(int x) { const float f = __int2float_rz(x); return __uint_as_float(__float_as_uint(f) | ((int)f != x)); }
DEV float u32_to_odd(u32 x) { const float f = __uint2float_rz(x); return __uint_as_float(__float_as_uint(f) | ((u32)f != x)); }
DEV float i64_to_odd(i64 x) { const float f = __ll2float_rz(x); return __uint_as_float(__float_as_uint(f) | ((i64)f != x)); }

extern "C" __global__ void __launch_bounds__(32)
casts(const float* __restrict__ x_f32, float* __restrict__ y_f32_f32, bf16* __restrict__ y_f32_bf16,
      f16* __restrict__ y_f32_f16, e4m3* __restrict__ y_f32_e4m3, e5m2* __restrict__ y_f32_e5m2,
      e8m0* __restrict__ y_f32_e8m0, int* __restrict__ y_f32_i32, i8* __restrict__ y_f32_i8,
      const bf16* __restrict__ x_bf16, float* __restrict__ y_bf16_f32, bf16* __restrict__ y_bf16_bf16,
      f16* __restrict__ y_bf16_f16, e4m3* __restrict__ y_bf16_e4m3, e5m2* __restrict__ y_bf16_e5m2,
      e8m0* __restrict__ y_bf16_e8m0, int* __restrict__ y_bf16_i32, i8* __restrict__ y_bf16_i8,
      const f16* __restrict__ x_f16, float* __restrict__ y_f16_f32, bf16* __restrict__ y_f16_bf16,
      f16* __restrict__ y_f16_f16, e4m3* __restrict__ y_f16_e4m3, e5m2* __restrict__ y_f16_e5m2,
      e8m0* __restrict__ y_f16_e8m0, int* __restrict__ y_f16_i32, i8* __restrict__ y_f16_i8,
      const e4m3* __restrict__ x_e4m3, float* __restrict__ y_e4m3_f32, bf16* __restrict__ y_e4m3_bf16,
      f16* __restrict__ y_e4m3_f16, e4m3* __restrict__ y_e4m3_e4m3, e5m2* __restrict__ y_e4m3_e5m2,
      e8m0* __restrict__ y_e4m3_e8m0, int* __restrict__ y_e4m3_i32, i8* __restrict__ y_e4m3_i8,
      const e5m2* __restrict__ x_e5m2, float* __restrict__ y_e5m2_f32, bf16* __restrict__ y_e5m2_bf16,
      f16* __restrict__ y_e5m2_f16, e4m3* __restrict__ y_e5m2_e4m3, e5m2* __restrict__ y_e5m2_e5m2,
      e8m0* __restrict__ y_e5m2_e8m0, int* __restrict__ y_e5m2_i32, i8* __restrict__ y_e5m2_i8,
      const e8m0* __restrict__ x_e8m0, float* __restrict__ y_e8m0_f32, bf16* __restrict__ y_e8m0_bf16,
      f16* __restrict__ y_e8m0_f16, e4m3* __restrict__ y_e8m0_e4m3, e5m2* __restrict__ y_e8m0_e5m2,
      e8m0* __restrict__ y_e8m0_e8m0, int* __restrict__ y_e8m0_i32, i8* __restrict__ y_e8m0_i8,
      const int* __restrict__ x_i32, float* __restrict__ y_i32_f32, bf16* __restrict__ y_i32_bf16,
      f16* __restrict__ y_i32_f16, e4m3* __restrict__ y_i32_e4m3, e5m2* __restrict__ y_i32_e5m2,
      e8m0* __restrict__ y_i32_e8m0, int* __restrict__ y_i32_i32, i8* __restrict__ y_i32_i8,
      const u8* __restrict__ x_u8, float* __restrict__ y_u8_f32, bf16* __restrict__ y_u8_bf16,
      f16* __restrict__ y_u8_f16, e4m3* __restrict__ y_u8_e4m3, e5m2* __restrict__ y_u8_e5m2,
      e8m0* __restrict__ y_u8_e8m0, int* __restrict__ y_u8_i32, i8* __restrict__ y_u8_i8) {
    const int tid = threadIdx.x;

    // emit_kernels.rs:2:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) float x_f32_v[4];
        ld_global_if<16>(x_f32_v, x_f32 + i, ok);
        alignas(16) float y_f32_f32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_f32_f32_v[v] = x_f32_v[v];
        }
        if (ok) st<16>(y_f32_f32 + i, y_f32_f32_v);
    }

    // emit_kernels.rs:3:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) float x_f32_v[4];
        ld_global_if<16>(x_f32_v, x_f32 + i, ok);
        alignas(16) float y_f32_bf16_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_f32_bf16_v[v] = x_f32_v[v];
        }
        alignas(16) bf16 y_f32_bf16_n[4];
        f32_to_bf16(y_f32_bf16_n, y_f32_bf16_v);
        if (ok) st<8>(y_f32_bf16 + i, y_f32_bf16_n);
    }

    // emit_kernels.rs:4:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) float x_f32_v[4];
        ld_global_if<16>(x_f32_v, x_f32 + i, ok);
        alignas(16) float y_f32_f16_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_f32_f16_v[v] = x_f32_v[v];
        }
        alignas(16) f16 y_f32_f16_n[4];
        f32_to_f16(y_f32_f16_n, y_f32_f16_v);
        if (ok) st<8>(y_f32_f16 + i, y_f32_f16_n);
    }

    // emit_kernels.rs:5:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) float x_f32_v[4];
        ld_global_if<16>(x_f32_v, x_f32 + i, ok);
        alignas(16) float y_f32_e4m3_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_f32_e4m3_v[v] = x_f32_v[v];
        }
        alignas(16) e4m3 y_f32_e4m3_n[4];
        f32_to_e4m3(y_f32_e4m3_n, y_f32_e4m3_v);
        if (ok) st<4>(y_f32_e4m3 + i, y_f32_e4m3_n);
    }

    // emit_kernels.rs:6:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) float x_f32_v[4];
        ld_global_if<16>(x_f32_v, x_f32 + i, ok);
        alignas(16) float y_f32_e5m2_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_f32_e5m2_v[v] = x_f32_v[v];
        }
        alignas(16) e5m2 y_f32_e5m2_n[4];
        f32_to_e5m2(y_f32_e5m2_n, y_f32_e5m2_v);
        if (ok) st<4>(y_f32_e5m2 + i, y_f32_e5m2_n);
    }

    // emit_kernels.rs:7:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) float x_f32_v[4];
        ld_global_if<16>(x_f32_v, x_f32 + i, ok);
        alignas(16) e8m0 y_f32_e8m0_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_f32_e8m0_v[v] = f32_to_e8m0(x_f32_v[v]);
        }
        if (ok) st<4>(y_f32_e8m0 + i, y_f32_e8m0_v);
    }

    // emit_kernels.rs:8:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) float x_f32_v[4];
        ld_global_if<16>(x_f32_v, x_f32 + i, ok);
        alignas(16) int y_f32_i32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_f32_i32_v[v] = f32_to_i32(x_f32_v[v]);
        }
        if (ok) st<16>(y_f32_i32 + i, y_f32_i32_v);
    }

    // emit_kernels.rs:9:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) float x_f32_v[4];
        ld_global_if<16>(x_f32_v, x_f32 + i, ok);
        alignas(16) i8 y_f32_i8_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_f32_i8_v[v] = f32_to_i8(x_f32_v[v]);
        }
        if (ok) st<4>(y_f32_i8 + i, y_f32_i8_v);
    }

    // emit_kernels.rs:10:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) bf16 x_bf16_v[4];
        ld_global_if<8>(x_bf16_v, x_bf16 + i, ok);
        alignas(16) float y_bf16_f32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_bf16_f32_v[v] = bf16_to_f32(x_bf16_v[v]);
        }
        if (ok) st<16>(y_bf16_f32 + i, y_bf16_f32_v);
    }

    // emit_kernels.rs:11:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) bf16 x_bf16_v[8];
        ld_global_if<16>(x_bf16_v, x_bf16 + i, ok);
        alignas(16) bf16 y_bf16_bf16_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_bf16_bf16_v[v] = x_bf16_v[v];
        }
        if (ok) st<16>(y_bf16_bf16 + i, y_bf16_bf16_v);
    }

    // emit_kernels.rs:12:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) bf16 x_bf16_v[8];
        ld_global_if<16>(x_bf16_v, x_bf16 + i, ok);
        alignas(16) f16 y_bf16_f16_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_bf16_f16_v[v] = f32_to_f16(bf16_to_f32(x_bf16_v[v]));
        }
        if (ok) st<16>(y_bf16_f16 + i, y_bf16_f16_v);
    }

    // emit_kernels.rs:13:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) bf16 x_bf16_v[8];
        ld_global_if<16>(x_bf16_v, x_bf16 + i, ok);
        alignas(16) e4m3 y_bf16_e4m3_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_bf16_e4m3_v[v] = f32_to_e4m3(bf16_to_f32(x_bf16_v[v]));
        }
        if (ok) st<8>(y_bf16_e4m3 + i, y_bf16_e4m3_v);
    }

    // emit_kernels.rs:14:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) bf16 x_bf16_v[8];
        ld_global_if<16>(x_bf16_v, x_bf16 + i, ok);
        alignas(16) e5m2 y_bf16_e5m2_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_bf16_e5m2_v[v] = f32_to_e5m2(bf16_to_f32(x_bf16_v[v]));
        }
        if (ok) st<8>(y_bf16_e5m2 + i, y_bf16_e5m2_v);
    }

    // emit_kernels.rs:15:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) bf16 x_bf16_v[8];
        ld_global_if<16>(x_bf16_v, x_bf16 + i, ok);
        alignas(16) e8m0 y_bf16_e8m0_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_bf16_e8m0_v[v] = f32_to_e8m0(bf16_to_f32(x_bf16_v[v]));
        }
        if (ok) st<8>(y_bf16_e8m0 + i, y_bf16_e8m0_v);
    }

    // emit_kernels.rs:16:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) bf16 x_bf16_v[4];
        ld_global_if<8>(x_bf16_v, x_bf16 + i, ok);
        alignas(16) int y_bf16_i32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_bf16_i32_v[v] = f32_to_i32(bf16_to_f32(x_bf16_v[v]));
        }
        if (ok) st<16>(y_bf16_i32 + i, y_bf16_i32_v);
    }

    // emit_kernels.rs:17:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) bf16 x_bf16_v[8];
        ld_global_if<16>(x_bf16_v, x_bf16 + i, ok);
        alignas(16) i8 y_bf16_i8_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_bf16_i8_v[v] = f32_to_i8(bf16_to_f32(x_bf16_v[v]));
        }
        if (ok) st<8>(y_bf16_i8 + i, y_bf16_i8_v);
    }

    // emit_kernels.rs:18:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) f16 x_f16_v[4];
        ld_global_if<8>(x_f16_v, x_f16 + i, ok);
        alignas(16) float y_f16_f32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_f16_f32_v[v] = f16_to_f32(x_f16_v[v]);
        }
        if (ok) st<16>(y_f16_f32 + i, y_f16_f32_v);
    }

    // emit_kernels.rs:19:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) f16 x_f16_v[8];
        ld_global_if<16>(x_f16_v, x_f16 + i, ok);
        alignas(16) bf16 y_f16_bf16_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_f16_bf16_v[v] = f32_to_bf16(f16_to_f32(x_f16_v[v]));
        }
        if (ok) st<16>(y_f16_bf16 + i, y_f16_bf16_v);
    }

    // emit_kernels.rs:20:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) f16 x_f16_v[8];
        ld_global_if<16>(x_f16_v, x_f16 + i, ok);
        alignas(16) f16 y_f16_f16_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_f16_f16_v[v] = x_f16_v[v];
        }
        if (ok) st<16>(y_f16_f16 + i, y_f16_f16_v);
    }

    // emit_kernels.rs:21:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) f16 x_f16_v[8];
        ld_global_if<16>(x_f16_v, x_f16 + i, ok);
        alignas(16) e4m3 y_f16_e4m3_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_f16_e4m3_v[v] = f32_to_e4m3(f16_to_f32(x_f16_v[v]));
        }
        if (ok) st<8>(y_f16_e4m3 + i, y_f16_e4m3_v);
    }

    // emit_kernels.rs:22:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) f16 x_f16_v[8];
        ld_global_if<16>(x_f16_v, x_f16 + i, ok);
        alignas(16) e5m2 y_f16_e5m2_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_f16_e5m2_v[v] = f32_to_e5m2(f16_to_f32(x_f16_v[v]));
        }
        if (ok) st<8>(y_f16_e5m2 + i, y_f16_e5m2_v);
    }

    // emit_kernels.rs:23:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) f16 x_f16_v[8];
        ld_global_if<16>(x_f16_v, x_f16 + i, ok);
        alignas(16) e8m0 y_f16_e8m0_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_f16_e8m0_v[v] = f32_to_e8m0(f16_to_f32(x_f16_v[v]));
        }
        if (ok) st<8>(y_f16_e8m0 + i, y_f16_e8m0_v);
    }

    // emit_kernels.rs:24:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) f16 x_f16_v[4];
        ld_global_if<8>(x_f16_v, x_f16 + i, ok);
        alignas(16) int y_f16_i32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_f16_i32_v[v] = f32_to_i32(f16_to_f32(x_f16_v[v]));
        }
        if (ok) st<16>(y_f16_i32 + i, y_f16_i32_v);
    }

    // emit_kernels.rs:25:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) f16 x_f16_v[8];
        ld_global_if<16>(x_f16_v, x_f16 + i, ok);
        alignas(16) i8 y_f16_i8_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_f16_i8_v[v] = f32_to_i8(f16_to_f32(x_f16_v[v]));
        }
        if (ok) st<8>(y_f16_i8 + i, y_f16_i8_v);
    }

    // emit_kernels.rs:26:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) e4m3 x_e4m3_v[4];
        ld_global_if<4>(x_e4m3_v, x_e4m3 + i, ok);
        alignas(16) float y_e4m3_f32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_e4m3_f32_v[v] = e4m3_to_f32(x_e4m3_v[v]);
        }
        if (ok) st<16>(y_e4m3_f32 + i, y_e4m3_f32_v);
    }

    // emit_kernels.rs:27:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) e4m3 x_e4m3_v[8];
        ld_global_if<8>(x_e4m3_v, x_e4m3 + i, ok);
        alignas(16) bf16 y_e4m3_bf16_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_e4m3_bf16_v[v] = f32_to_bf16(e4m3_to_f32(x_e4m3_v[v]));
        }
        if (ok) st<16>(y_e4m3_bf16 + i, y_e4m3_bf16_v);
    }

    // emit_kernels.rs:28:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) e4m3 x_e4m3_v[8];
        ld_global_if<8>(x_e4m3_v, x_e4m3 + i, ok);
        alignas(16) f16 y_e4m3_f16_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_e4m3_f16_v[v] = f32_to_f16(e4m3_to_f32(x_e4m3_v[v]));
        }
        if (ok) st<16>(y_e4m3_f16 + i, y_e4m3_f16_v);
    }

    // emit_kernels.rs:29:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) e4m3 x_e4m3_v[16];
        ld_global_if<16>(x_e4m3_v, x_e4m3 + i, ok);
        alignas(16) e4m3 y_e4m3_e4m3_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_e4m3_e4m3_v[v] = x_e4m3_v[v];
        }
        if (ok) st<16>(y_e4m3_e4m3 + i, y_e4m3_e4m3_v);
    }

    // emit_kernels.rs:30:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) e4m3 x_e4m3_v[16];
        ld_global_if<16>(x_e4m3_v, x_e4m3 + i, ok);
        alignas(16) e5m2 y_e4m3_e5m2_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_e4m3_e5m2_v[v] = f32_to_e5m2(e4m3_to_f32(x_e4m3_v[v]));
        }
        if (ok) st<16>(y_e4m3_e5m2 + i, y_e4m3_e5m2_v);
    }

    // emit_kernels.rs:31:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) e4m3 x_e4m3_v[16];
        ld_global_if<16>(x_e4m3_v, x_e4m3 + i, ok);
        alignas(16) e8m0 y_e4m3_e8m0_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_e4m3_e8m0_v[v] = f32_to_e8m0(e4m3_to_f32(x_e4m3_v[v]));
        }
        if (ok) st<16>(y_e4m3_e8m0 + i, y_e4m3_e8m0_v);
    }

    // emit_kernels.rs:32:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) e4m3 x_e4m3_v[4];
        ld_global_if<4>(x_e4m3_v, x_e4m3 + i, ok);
        alignas(16) int y_e4m3_i32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_e4m3_i32_v[v] = f32_to_i32(e4m3_to_f32(x_e4m3_v[v]));
        }
        if (ok) st<16>(y_e4m3_i32 + i, y_e4m3_i32_v);
    }

    // emit_kernels.rs:33:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) e4m3 x_e4m3_v[16];
        ld_global_if<16>(x_e4m3_v, x_e4m3 + i, ok);
        alignas(16) i8 y_e4m3_i8_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_e4m3_i8_v[v] = f32_to_i8(e4m3_to_f32(x_e4m3_v[v]));
        }
        if (ok) st<16>(y_e4m3_i8 + i, y_e4m3_i8_v);
    }

    // emit_kernels.rs:34:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) e5m2 x_e5m2_v[4];
        ld_global_if<4>(x_e5m2_v, x_e5m2 + i, ok);
        alignas(16) float y_e5m2_f32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_e5m2_f32_v[v] = e5m2_to_f32(x_e5m2_v[v]);
        }
        if (ok) st<16>(y_e5m2_f32 + i, y_e5m2_f32_v);
    }

    // emit_kernels.rs:35:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) e5m2 x_e5m2_v[8];
        ld_global_if<8>(x_e5m2_v, x_e5m2 + i, ok);
        alignas(16) bf16 y_e5m2_bf16_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_e5m2_bf16_v[v] = f32_to_bf16(e5m2_to_f32(x_e5m2_v[v]));
        }
        if (ok) st<16>(y_e5m2_bf16 + i, y_e5m2_bf16_v);
    }

    // emit_kernels.rs:36:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) e5m2 x_e5m2_v[8];
        ld_global_if<8>(x_e5m2_v, x_e5m2 + i, ok);
        alignas(16) f16 y_e5m2_f16_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_e5m2_f16_v[v] = f32_to_f16(e5m2_to_f32(x_e5m2_v[v]));
        }
        if (ok) st<16>(y_e5m2_f16 + i, y_e5m2_f16_v);
    }

    // emit_kernels.rs:37:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) e5m2 x_e5m2_v[16];
        ld_global_if<16>(x_e5m2_v, x_e5m2 + i, ok);
        alignas(16) e4m3 y_e5m2_e4m3_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_e5m2_e4m3_v[v] = f32_to_e4m3(e5m2_to_f32(x_e5m2_v[v]));
        }
        if (ok) st<16>(y_e5m2_e4m3 + i, y_e5m2_e4m3_v);
    }

    // emit_kernels.rs:38:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) e5m2 x_e5m2_v[16];
        ld_global_if<16>(x_e5m2_v, x_e5m2 + i, ok);
        alignas(16) e5m2 y_e5m2_e5m2_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_e5m2_e5m2_v[v] = x_e5m2_v[v];
        }
        if (ok) st<16>(y_e5m2_e5m2 + i, y_e5m2_e5m2_v);
    }

    // emit_kernels.rs:39:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) e5m2 x_e5m2_v[16];
        ld_global_if<16>(x_e5m2_v, x_e5m2 + i, ok);
        alignas(16) e8m0 y_e5m2_e8m0_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_e5m2_e8m0_v[v] = f32_to_e8m0(e5m2_to_f32(x_e5m2_v[v]));
        }
        if (ok) st<16>(y_e5m2_e8m0 + i, y_e5m2_e8m0_v);
    }

    // emit_kernels.rs:40:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) e5m2 x_e5m2_v[4];
        ld_global_if<4>(x_e5m2_v, x_e5m2 + i, ok);
        alignas(16) int y_e5m2_i32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_e5m2_i32_v[v] = f32_to_i32(e5m2_to_f32(x_e5m2_v[v]));
        }
        if (ok) st<16>(y_e5m2_i32 + i, y_e5m2_i32_v);
    }

    // emit_kernels.rs:41:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) e5m2 x_e5m2_v[16];
        ld_global_if<16>(x_e5m2_v, x_e5m2 + i, ok);
        alignas(16) i8 y_e5m2_i8_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_e5m2_i8_v[v] = f32_to_i8(e5m2_to_f32(x_e5m2_v[v]));
        }
        if (ok) st<16>(y_e5m2_i8 + i, y_e5m2_i8_v);
    }

    // emit_kernels.rs:42:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) e8m0 x_e8m0_v[4];
        ld_global_if<4>(x_e8m0_v, x_e8m0 + i, ok);
        alignas(16) float y_e8m0_f32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_e8m0_f32_v[v] = e8m0_to_f32(x_e8m0_v[v]);
        }
        if (ok) st<16>(y_e8m0_f32 + i, y_e8m0_f32_v);
    }

    // emit_kernels.rs:43:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) e8m0 x_e8m0_v[8];
        ld_global_if<8>(x_e8m0_v, x_e8m0 + i, ok);
        alignas(16) bf16 y_e8m0_bf16_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_e8m0_bf16_v[v] = f32_to_bf16(e8m0_to_f32(x_e8m0_v[v]));
        }
        if (ok) st<16>(y_e8m0_bf16 + i, y_e8m0_bf16_v);
    }

    // emit_kernels.rs:44:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) e8m0 x_e8m0_v[8];
        ld_global_if<8>(x_e8m0_v, x_e8m0 + i, ok);
        alignas(16) f16 y_e8m0_f16_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_e8m0_f16_v[v] = f32_to_f16(e8m0_to_f32(x_e8m0_v[v]));
        }
        if (ok) st<16>(y_e8m0_f16 + i, y_e8m0_f16_v);
    }

    // emit_kernels.rs:45:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) e8m0 x_e8m0_v[16];
        ld_global_if<16>(x_e8m0_v, x_e8m0 + i, ok);
        alignas(16) e4m3 y_e8m0_e4m3_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_e8m0_e4m3_v[v] = f32_to_e4m3(e8m0_to_f32(x_e8m0_v[v]));
        }
        if (ok) st<16>(y_e8m0_e4m3 + i, y_e8m0_e4m3_v);
    }

    // emit_kernels.rs:46:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) e8m0 x_e8m0_v[16];
        ld_global_if<16>(x_e8m0_v, x_e8m0 + i, ok);
        alignas(16) e5m2 y_e8m0_e5m2_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_e8m0_e5m2_v[v] = f32_to_e5m2(e8m0_to_f32(x_e8m0_v[v]));
        }
        if (ok) st<16>(y_e8m0_e5m2 + i, y_e8m0_e5m2_v);
    }

    // emit_kernels.rs:47:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) e8m0 x_e8m0_v[16];
        ld_global_if<16>(x_e8m0_v, x_e8m0 + i, ok);
        alignas(16) e8m0 y_e8m0_e8m0_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_e8m0_e8m0_v[v] = x_e8m0_v[v];
        }
        if (ok) st<16>(y_e8m0_e8m0 + i, y_e8m0_e8m0_v);
    }

    // emit_kernels.rs:48:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) e8m0 x_e8m0_v[4];
        ld_global_if<4>(x_e8m0_v, x_e8m0 + i, ok);
        alignas(16) int y_e8m0_i32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_e8m0_i32_v[v] = f32_to_i32(e8m0_to_f32(x_e8m0_v[v]));
        }
        if (ok) st<16>(y_e8m0_i32 + i, y_e8m0_i32_v);
    }

    // emit_kernels.rs:49:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) e8m0 x_e8m0_v[16];
        ld_global_if<16>(x_e8m0_v, x_e8m0 + i, ok);
        alignas(16) i8 y_e8m0_i8_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_e8m0_i8_v[v] = f32_to_i8(e8m0_to_f32(x_e8m0_v[v]));
        }
        if (ok) st<16>(y_e8m0_i8 + i, y_e8m0_i8_v);
    }

    // emit_kernels.rs:50:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) int x_i32_v[4];
        ld_global_if<16>(x_i32_v, x_i32 + i, ok);
        alignas(16) float y_i32_f32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_i32_f32_v[v] = (float)x_i32_v[v];
        }
        if (ok) st<16>(y_i32_f32 + i, y_i32_f32_v);
    }

    // emit_kernels.rs:51:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) int x_i32_v[4];
        ld_global_if<16>(x_i32_v, x_i32 + i, ok);
        alignas(16) bf16 y_i32_bf16_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_i32_bf16_v[v] = f32_to_bf16(i32_to_odd(x_i32_v[v]));
        }
        if (ok) st<8>(y_i32_bf16 + i, y_i32_bf16_v);
    }

    // emit_kernels.rs:52:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) int x_i32_v[4];
        ld_global_if<16>(x_i32_v, x_i32 + i, ok);
        alignas(16) f16 y_i32_f16_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_i32_f16_v[v] = f32_to_f16(i32_to_odd(x_i32_v[v]));
        }
        if (ok) st<8>(y_i32_f16 + i, y_i32_f16_v);
    }

    // emit_kernels.rs:53:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) int x_i32_v[4];
        ld_global_if<16>(x_i32_v, x_i32 + i, ok);
        alignas(16) e4m3 y_i32_e4m3_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_i32_e4m3_v[v] = f32_to_e4m3(i32_to_odd(x_i32_v[v]));
        }
        if (ok) st<4>(y_i32_e4m3 + i, y_i32_e4m3_v);
    }

    // emit_kernels.rs:54:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) int x_i32_v[4];
        ld_global_if<16>(x_i32_v, x_i32 + i, ok);
        alignas(16) e5m2 y_i32_e5m2_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_i32_e5m2_v[v] = f32_to_e5m2(i32_to_odd(x_i32_v[v]));
        }
        if (ok) st<4>(y_i32_e5m2 + i, y_i32_e5m2_v);
    }

    // emit_kernels.rs:55:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) int x_i32_v[4];
        ld_global_if<16>(x_i32_v, x_i32 + i, ok);
        alignas(16) e8m0 y_i32_e8m0_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_i32_e8m0_v[v] = f32_to_e8m0(i32_to_odd(x_i32_v[v]));
        }
        if (ok) st<4>(y_i32_e8m0 + i, y_i32_e8m0_v);
    }

    // emit_kernels.rs:56:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) int x_i32_v[4];
        ld_global_if<16>(x_i32_v, x_i32 + i, ok);
        alignas(16) int y_i32_i32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_i32_i32_v[v] = x_i32_v[v];
        }
        if (ok) st<16>(y_i32_i32 + i, y_i32_i32_v);
    }

    // emit_kernels.rs:57:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) int x_i32_v[4];
        ld_global_if<16>(x_i32_v, x_i32 + i, ok);
        alignas(16) i8 y_i32_i8_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_i32_i8_v[v] = (i8)x_i32_v[v];
        }
        if (ok) st<4>(y_i32_i8 + i, y_i32_i8_v);
    }

    // emit_kernels.rs:58:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) u8 x_u8_v[4];
        ld_global_if<4>(x_u8_v, x_u8 + i, ok);
        alignas(16) float y_u8_f32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_u8_f32_v[v] = (float)x_u8_v[v];
        }
        if (ok) st<16>(y_u8_f32 + i, y_u8_f32_v);
    }

    // emit_kernels.rs:59:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) u8 x_u8_v[8];
        ld_global_if<8>(x_u8_v, x_u8 + i, ok);
        alignas(16) bf16 y_u8_bf16_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_u8_bf16_v[v] = f32_to_bf16((float)x_u8_v[v]);
        }
        if (ok) st<16>(y_u8_bf16 + i, y_u8_bf16_v);
    }

    // emit_kernels.rs:60:5: parallel [64]
    {
        const int i = tid * 8;
        const bool ok = i < 64;
        alignas(16) u8 x_u8_v[8];
        ld_global_if<8>(x_u8_v, x_u8 + i, ok);
        alignas(16) f16 y_u8_f16_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            y_u8_f16_v[v] = f32_to_f16((float)x_u8_v[v]);
        }
        if (ok) st<16>(y_u8_f16 + i, y_u8_f16_v);
    }

    // emit_kernels.rs:61:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) u8 x_u8_v[16];
        ld_global_if<16>(x_u8_v, x_u8 + i, ok);
        alignas(16) e4m3 y_u8_e4m3_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_u8_e4m3_v[v] = f32_to_e4m3((float)x_u8_v[v]);
        }
        if (ok) st<16>(y_u8_e4m3 + i, y_u8_e4m3_v);
    }

    // emit_kernels.rs:62:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) u8 x_u8_v[16];
        ld_global_if<16>(x_u8_v, x_u8 + i, ok);
        alignas(16) e5m2 y_u8_e5m2_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_u8_e5m2_v[v] = f32_to_e5m2((float)x_u8_v[v]);
        }
        if (ok) st<16>(y_u8_e5m2 + i, y_u8_e5m2_v);
    }

    // emit_kernels.rs:63:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) u8 x_u8_v[16];
        ld_global_if<16>(x_u8_v, x_u8 + i, ok);
        alignas(16) e8m0 y_u8_e8m0_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_u8_e8m0_v[v] = f32_to_e8m0((float)x_u8_v[v]);
        }
        if (ok) st<16>(y_u8_e8m0 + i, y_u8_e8m0_v);
    }

    // emit_kernels.rs:64:5: parallel [64]
    {
        const int i = tid * 4;
        const bool ok = i < 64;
        alignas(16) u8 x_u8_v[4];
        ld_global_if<4>(x_u8_v, x_u8 + i, ok);
        alignas(16) int y_u8_i32_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            y_u8_i32_v[v] = (int)x_u8_v[v];
        }
        if (ok) st<16>(y_u8_i32 + i, y_u8_i32_v);
    }

    // emit_kernels.rs:65:5: parallel [64]
    {
        const int i = tid * 16;
        const bool ok = i < 64;
        alignas(16) u8 x_u8_v[16];
        ld_global_if<16>(x_u8_v, x_u8 + i, ok);
        alignas(16) i8 y_u8_i8_v[16];
        #pragma unroll
        for (int v = 0; v < 16; ++v) {
            y_u8_i8_v[v] = (i8)x_u8_v[v];
        }
        if (ok) st<16>(y_u8_i8 + i, y_u8_i8_v);
    }
}
