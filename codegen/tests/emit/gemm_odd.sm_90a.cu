// gemm_odd (emit_kernels.rs:1:5)
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

extern "C" __global__ void __launch_bounds__(64, 1)
gemm_odd(const f16* __restrict__ a, const f16* __restrict__ b, const f16* __restrict__ d, const float* __restrict__ f,
         float* __restrict__ out) {
    extern __shared__ __align__(16) u8 shared[];
    const int tid = threadIdx.x;
    const int lane = tid % 32, warp = tid / 32;
    f16* const at = (f16*)shared;
    f16* const bt = (f16*)(shared + 960);
    f16* const dt = (f16*)(shared + 2880);
    float* const ft = (float*)(shared + 4416);
    float s[20];
    float g[12];

    // emit_kernels.rs:2:5: parallel [20, 24]
    {
        const int at2 = tid * 8;
        const int i = at2 / 24;
        const int j = at2 % 24;
        const bool ok = at2 < 480;
        alignas(16) f16 a_v[8];
        ld_global_if<16>(a_v, a + i * 24 + j, ok);
        alignas(16) f16 at_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            at_v[v] = a_v[v];
        }
        if (ok) st<16>(at + i * 24 + j, at_v);
    }

    // emit_kernels.rs:3:5: parallel [24, 40]
    #pragma unroll
    for (int s2 = 0; s2 < 2; ++s2) {
        const int at2 = (s2 * 64 + tid) * 8;
        const int i = at2 / 40;
        const int j = at2 % 40;
        const bool ok = at2 < 960;
        alignas(16) f16 b_v[8];
        ld_global_if<16>(b_v, b + i * 40 + j, ok);
        alignas(16) f16 bt_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            bt_v[v] = b_v[v];
        }
        if (ok) st<16>(bt + i * 40 + j, bt_v);
    }

    // emit_kernels.rs:4:5: parallel [32, 24]
    #pragma unroll
    for (int s2 = 0; s2 < 2; ++s2) {
        const int at2 = (s2 * 64 + tid) * 8;
        const int i = at2 / 24;
        const int j = at2 % 24;
        const bool ok = at2 < 768;
        alignas(16) f16 d_v[8];
        ld_global_if<16>(d_v, d + i * 24 + j, ok);
        alignas(16) f16 dt_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            dt_v[v] = d_v[v];
        }
        if (ok) st<16>(dt + i * 24 + j, dt_v);
    }

    // emit_kernels.rs:5:5: parallel [20, 24]
    #pragma unroll
    for (int s2 = 0; s2 < 2; ++s2) {
        const int at2 = (s2 * 64 + tid) * 4;
        const int i = at2 / 24;
        const int j = at2 % 24;
        const bool ok = at2 < 480;
        alignas(16) float f_v[4];
        ld_global_if<16>(f_v, f + i * 24 + j, ok);
        alignas(16) float ft_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            ft_v[v] = f_v[v];
        }
        if (ok) st<16>(ft + i * 28 + j, ft_v);
    }
    __syncthreads();  // at: written at emit_kernels.rs:2:5, read next

    // emit_kernels.rs:6:5: gemm = [20, 24] x [24, 40], f16 x f16, matrix unit, elements one by one
    {
        const int row0 = warp * 16;
        #pragma unroll
        for (int i = 0; i < 20; ++i) {
            s[i] = 0.0f;
        }
        #pragma unroll
        for (int k = 0; k < 24; k += 16) {
            u32 x[1][4];
            #pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int row = row0 + r % 2 * 8 + lane / 4, q = k + r / 2 * 8 + lane % 4 * 2;
                x[0][r] = (u32)(row < 20 && q < 24 ? at[row * 24 + q] : 0) | (u32)(row < 20 && q + 1 < 24 ? at[row * 24 + q + 1] : 0) << 16;
            }
            u32 y[5][2];
            #pragma unroll
            for (int j = 0; j < 5; ++j) {
                #pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const int column = j * 8 + lane / 4, q = k + r * 8 + lane % 4 * 2;
                    y[j][r] = (u32)(q < 24 ? bt[q * 40 + column] : 0) | (u32)(q + 1 < 24 ? bt[(q + 1) * 40 + column] : 0) << 16;
                }
            }
            #pragma unroll
            for (int j = 0; j < 5; ++j) {
                mma_f16_16x8x16(reinterpret_cast<float (&)[4]>(s[j * 4]), x[0], y[j][0], y[j][1]);
            }
        }
    }
    float* const w = (float*)(shared + 6656);

    // emit_kernels.rs:7:5: parallel [24, 30]
    #pragma unroll 4
    for (int s2 = 0; s2 < 12; ++s2) {
        const int at2 = s2 * 64 + tid;
        const int i = at2 / 30;
        const int j = at2 % 30;
        if (at2 < 720) {
            w[i * 30 + j] = 1.0f;
        }
    }
    __syncthreads();  // w: written at emit_kernels.rs:7:5, read next

    // emit_kernels.rs:8:5: gemm += [24, 32] x [32, 30], f16 x f16, matrix unit, elements one by one
    {
        const int row0 = warp * 16;
        float part[16];
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int row = row0 + (e / 2) * 8 + lane / 4, column = j * 8 + lane % 4 * 2 + e % 2;
                if (row < 24 && column < 30) part[j * 4 + e] = w[row * 30 + column];
            }
        }
        #pragma unroll
        for (int k = 0; k < 32; k += 16) {
            u32 x[1][4];
            #pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int row = row0 + r % 2 * 8 + lane / 4, q = k + r / 2 * 8 + lane % 4 * 2;
                x[0][r] = (u32)(row < 24 ? dt[row + q * 24] : 0) | (u32)(row < 24 ? dt[row + (q + 1) * 24] : 0) << 16;
            }
            u32 y[4][2];
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                #pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const int column = j * 8 + lane / 4, q = k + r * 8 + lane % 4 * 2;
                    y[j][r] = (u32)(column < 30 ? bt[q * 30 + column] : 0) | (u32)(column < 30 ? bt[(q + 1) * 30 + column] : 0) << 16;
                }
            }
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                mma_f16_16x8x16(reinterpret_cast<float (&)[4]>(part[j * 4]), x[0], y[j][0], y[j][1]);
            }
        }
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int row = row0 + (e / 2) * 8 + lane / 4, column = j * 8 + lane % 4 * 2 + e % 2;
                if (row < 24 && column < 30) w[row * 30 + column] = part[j * 4 + e];
            }
        }
    }
    float* const half = (float*)(shared + 9536);
    __syncthreads();  // w: written at emit_kernels.rs:8:5, read next

    // emit_kernels.rs:9:5: parallel [24, 24]
    #pragma unroll
    for (int s2 = 0; s2 < 3; ++s2) {
        const int at2 = (s2 * 64 + tid) * 4;
        const int i = at2 / 24;
        const int j = at2 % 24;
        const bool ok = at2 < 576;
        alignas(16) float w_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) w_v[v] = 0;
        if (ok) ld<8>(w_v, w + i * 30 + j);
        alignas(16) float half_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            half_v[v] = w_v[v];
        }
        if (ok) st<16>(half + i * 28 + j, half_v);
    }
    __syncthreads();  // half: written at emit_kernels.rs:9:5, read next

    // emit_kernels.rs:10:5: gemm = [20, 24] x [24, 24], f32 x f32, no matrix unit
    {
        const int row0 = warp * 16;
        #pragma unroll
        for (int i = 0; i < 12; ++i) {
            g[i] = 0.0f;
        }
        #pragma unroll 4
        for (int k = 0; k < 24; ++k) {
            float x[2];
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
                x[i] = ft[min_of<int>(row0 + i / 2 * 16 + i % 2 * 8 + lane / 4, 19) * 28 + k];
            }
            float y[6];
            #pragma unroll
            for (int j = 0; j < 6; ++j) {
                y[j] = half[k * 28 + j / 2 * 8 + j % 2 + lane % 4 * 2];
            }
            #pragma unroll
            for (int j = 0; j < 3; ++j) {
                #pragma unroll
                for (int e = 0; e < 4; ++e) {
                    g[j * 4 + e] = __fmaf_rn(x[e / 2], y[j * 2 + e % 2], g[j * 4 + e]);
                }
            }
        }
    }

    // emit_kernels.rs:11:5: parallel [20, 40]
    #pragma unroll
    for (int s2 = 0; s2 < 10; ++s2) {
        const int i = warp * 16 + s2 % 2 * 8 + lane / 4;
        const int j = s2 / 2 * 8 + lane % 4 * 2;
        const bool ok = i < 20;
        alignas(16) float out_v[2];
        #pragma unroll
        for (int v = 0; v < 2; ++v) {
            out_v[v] = s[s2 * 2 + v];
        }
        if (ok) st<8>(out + i * 40 + j, out_v);
    }
    __syncthreads();  // out: written at emit_kernels.rs:11:5, written next

    // emit_kernels.rs:12:5: parallel [20, 24]
    #pragma unroll
    for (int s2 = 0; s2 < 6; ++s2) {
        const int i = warp * 16 + s2 % 2 * 8 + lane / 4;
        const int j = s2 / 2 * 8 + lane % 4 * 2;
        const bool ok = i < 20;
        alignas(16) float out_v[2];
        #pragma unroll
        for (int v = 0; v < 2; ++v) {
            out_v[v] = g[s2 * 2 + v];
        }
        if (ok) st<8>(out + i * 40 + j + 960, out_v);
    }
}
