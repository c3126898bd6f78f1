// gemm_fp4 (emit_kernels.rs:1:5)
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

// e8m0: the exponent of a power of two; 255 is NaN, 0 is 2^-127.
DEV e8m0 f32_to_e8m0(float x) { return (e8m0)(__float_as_uint(x) >> 23); }
DEV float e8m0_to_f32(e8m0 x) {
    return __uint_as_float(x == 0 ? 0x00400000u : x == 255 ? 0x7fffffffu : (u32)x << 23);
}

// Matrices: fragments from shared memory, and 16 x 8 products over 16 values of k, accumulated in f32.
DEV void ldmatrix_x4(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
DEV void ldmatrix_x4_trans(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
DEV void mma_bf16_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV void mma_f16_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same for fragments widened from bytes, where lane t has the values 4t to 4t + 3 of k instead of 2t, 2t + 1, 2t + 8
// and 2t + 9: both operands are permuted alike, so the sum is over the same products.
DEV void mma_f16_bytes_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_f16_16x8x16(d, a, b0, b1); }

// Four bytes to four f16, exactly: bytes 0 and 1, then 2 and 3. Codes of e2m1 lie one in a byte.
struct E4m3 {
    static DEV void widen(u32 (&r)[2], u32 x) {
        asm("{\n .reg .b16 lo, hi;\n mov.b32 {lo, hi}, %2;\n cvt.rn.f16x2.e4m3x2 %0, lo;\n cvt.rn.f16x2.e4m3x2 %1, hi;\n}"
            : "=r"(r[0]), "=r"(r[1]) : "r"(x));
    }
};
struct E5m2 {
    static DEV void widen(u32 (&r)[2], u32 x) {
        r[0] = (x & 0xff) << 8 | (x & 0xff00) << 16;
        r[1] = (x & 0xff0000) >> 8 | (x & 0xff000000);
    }
};
struct E2m1 {
    static DEV u32 two(u32 x) {
        // The code as the top of an f16 lacks a factor of 2^14, the difference of the exponents' biases.
        const u32 p = (x & 0xff) | (x & 0xff00) << 8, h = (p & 0x80008) << 12 | (p & 0x70007) << 9;
        u32 r; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(h), "r"(0x74007400)); return r;
    }
    static DEV void widen(u32 (&r)[2], u32 x) { r[0] = two(x); r[1] = two(x >> 16); }
};

// Fragments of bytes to f16: two steps of k of a left operand, or of two neighbouring right operands.
template <typename F> DEV void widen_left(u32 (&r)[2][4], const u32 (&x)[4]) {
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 upper[2], lower[2];
        F::widen(upper, x[2 * h]);
        F::widen(lower, x[2 * h + 1]);
        r[h][0] = upper[0]; r[h][1] = lower[0]; r[h][2] = upper[1]; r[h][3] = lower[1];
    }
}
template <typename F> DEV void widen_right(u32 (&r)[2][2][2], const u32 (&x)[4]) {
    #pragma unroll
    for (int q = 0; q < 4; q++) F::widen(r[q / 2][q % 2], x[q]);
}
template <typename F> DEV u16 widen_one(u8 x) { u32 r[2]; F::widen(r, x); return (u16)r[0]; }

extern "C" __global__ void __launch_bounds__(64, 1)
gemm_fp4(const u8* __restrict__ a, const u8* __restrict__ b, const e8m0* __restrict__ sfa, float* __restrict__ c,
         u8* __restrict__ copy) {
    extern __shared__ __align__(16) u8 shared[];
    const int tid = threadIdx.x;
    const int lane = tid % 32, warp = tid / 32;
    const int bx = blockIdx.x;
    float acc[16];
    u8* const at = (u8*)shared;
    u8* const bt = (u8*)(shared + 1536);

    // emit_kernels.rs:2:5: parallel [32, 32]
    #pragma unroll
    for (int s = 0; s < 8; ++s) {
        #pragma unroll
        for (int v = 0; v < 2; ++v) {
            acc[s * 2 + v] = 0.0f;
        }
    }

    // emit_kernels.rs:7:5: loop
    for (int s = 0; s < 2; ++s) {
        __syncthreads();  // at: read at emit_kernels.rs:6:5, written next

        // emit_kernels.rs:4:5: parallel [32, 32]
        {
            const int at2 = tid * 16;
            const int i = at2 / 32;
            const int j = at2 % 32;
            alignas(16) u8 a_v[8];
            ld_global_if<8>(a_v, a + (bx * 32 * 64 + i * 64 + s * 32 + j) / 2, bx * 32 + i < 24);
            alignas(16) u8 at_v[16];
            #pragma unroll
            for (int v = 0; v < 16; ++v) {
                at_v[v] = (u8)(a_v[(v) / 2] >> (v) % 2 * 4 & 15);
            }
            st<16>(at + i * 48 + j, at_v);
        }

        // emit_kernels.rs:5:5: parallel [32, 32]
        {
            const int at2 = tid * 16;
            const int i = at2 / 32;
            const int j = at2 % 32;
            alignas(16) u8 b_v[8];
            ld_global<8>(b_v, b + (i * 64 + s * 32 + j) / 2);
            alignas(16) u8 bt_v[16];
            #pragma unroll
            for (int v = 0; v < 16; ++v) {
                bt_v[v] = (u8)(b_v[(v) / 2] >> (v) % 2 * 4 & 15);
            }
            st<16>(bt + i * 48 + j, bt_v);
        }
        __syncthreads();  // at: written at emit_kernels.rs:4:5, read next

        // emit_kernels.rs:6:5: gemm += [32, 32] x [32, 32], e2m1 x e2m1, matrix unit after widening bytes
        {
            const int row0 = warp * 16;
            float part[16] = {};
            u32 x[1][4];
            ldmatrix_x4(x[0], at + (row0 + lane % 16) * 48 + lane / 16 * 16);
            u32 y[2][4];
            #pragma unroll
            for (int j = 0; j < 2; ++j) {
                ldmatrix_x4(y[j], bt + lane / 8 % 2 * 16 + (j * 16 + lane / 16 * 8 + lane % 8) * 48);
            }
            u32 xw[1][2][4];
            widen_left<E2m1>(xw[0], x[0]);
            u32 yw[2][2][2][2];
            #pragma unroll
            for (int j = 0; j < 2; ++j) {
                widen_right<E2m1>(yw[j], y[j]);
            }
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                    mma_f16_bytes_16x8x16(reinterpret_cast<float (&)[4]>(part[j * 4]), xw[0][h], yw[j / 2][j % 2][h][0], yw[j / 2][j % 2][h][1]);
                }
            }
            float row_scale[2];
            const e8m0* const sfa_at = sfa + bx * 32 * 2 + s;
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int i2 = row0 + i / 2 * 16 + i % 2 * 8 + lane / 4;
                const e8m0 sfa_i = bx * 32 + i2 < 24 ? sfa_at[i2 * 2] : (e8m0)0x0;
                row_scale[i] = e8m0_to_f32(sfa_i);
            }
            float column_scale[8];
            #pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int j = i / 2 * 8 + i % 2 + lane % 4 * 2;
                column_scale[i] = 0.5f;
            }
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                #pragma unroll
                for (int e = 0; e < 4; ++e) {
                    acc[j * 4 + e] = __fmaf_rn(row_scale[e / 2] * column_scale[j * 2 + e % 2], part[j * 4 + e], acc[j * 4 + e]);
                }
            }
        }

        // emit_kernels.rs:7:5: parallel [32, 32]
        {
            const int at2 = tid * 16;
            const int i = at2 / 32;
            const int j = at2 % 32;
            alignas(16) u8 bt_v[16];
            ld<16>(bt_v, bt + i * 48 + j);
            alignas(16) u8 copy_v[16];
            #pragma unroll
            for (int v = 0; v < 16; ++v) {
                copy_v[v] = bt_v[v];
            }
            alignas(16) u8 pairs[8];
            #pragma unroll
            for (int v = 0; v < 8; ++v) pairs[v] = copy_v[2 * v] | copy_v[2 * v + 1] << 4;
            st<8>(copy + (i * 64 + s * 32 + j) / 2, pairs);
        }
    }

    // emit_kernels.rs:8:5: parallel [32, 32]
    float* const c_at = c + bx * 32 * 32;
    #pragma unroll
    for (int s = 0; s < 8; ++s) {
        const int i = warp * 16 + s % 2 * 8 + lane / 4;
        const int j = s / 2 * 8 + lane % 4 * 2;
        alignas(16) float c_v[2];
        #pragma unroll
        for (int v = 0; v < 2; ++v) {
            c_v[v] = acc[s * 2 + v];
        }
        if (bx * 32 + i < 24) st<8>(c_at + i * 32 + j, c_v);
    }
}
