// attention (emit_kernels.rs:1:5)
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

extern "C" __global__ void __launch_bounds__(128, 1)
attention(const bf16* __restrict__ q, const bf16* __restrict__ kv, bf16* __restrict__ out, int m, int n) {
    extern __shared__ __align__(16) u8 shared[];
    const int tid = threadIdx.x;
    const int lane = tid % 32, warp = tid / 32;
    const int lane8 = tid % 8, group8 = tid / 8;
    const int bx = blockIdx.x;
    bf16* const qt = (bf16*)shared;
    bf16* const kt = (bf16*)(shared + 9216);
    float s[32];
    float p[32];
    bf16* const pt = (bf16*)(shared + 18432);
    float o[32];
    float mx[4];
    float* const l = (float*)(shared + 27648);
    float* const alpha = (float*)(shared + 27904);

    // emit_kernels.rs:2:5: parallel [64, 64]
    #pragma unroll
    for (int r = 0; r < 2; ++r) {
        #pragma unroll
        for (int s2 = 0; s2 < 8; ++s2) {
            #pragma unroll
            for (int v = 0; v < 2; ++v) {
                o[(r * 8 + s2) * 2 + v] = 0.0f;
            }
        }
    }

    // emit_kernels.rs:3:5: parallel [64]
    {
        if (tid < 64) {
            l[tid] = 0.0f;
        }
    }

    // emit_kernels.rs:4:5: parallel [64]
    #pragma unroll
    for (int r = 0; r < 4; ++r) {
        mx[r] = -1e30f;
    }

    // emit_kernels.rs:5:5: parallel [64, 64]
    const bf16* const q_at = q + bx * 64 * 64;
    #pragma unroll
    for (int s2 = 0; s2 < 4; ++s2) {
        const int at = (s2 * 128 + tid) * 8;
        const int i = at / 64;
        const int j = at % 64;
        alignas(16) bf16 q_v[8];
        ld_global_if<16>(q_v, q_at + i * 64 + j, bx * 64 + i < m);
        alignas(16) bf16 qt_v[8];
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
            qt_v[v] = q_v[v];
        }
        st<16>(qt + i * 72 + j, qt_v);
    }

    // emit_kernels.rs:16:5: loop
    for (int b = 0; b < (n + 63) / 64; ++b) {
        __syncthreads();  // kt: read at emit_kernels.rs:16:5, written next

        // emit_kernels.rs:7:5: parallel [64, 64]
        const bf16* const kv_at = kv + b * 64 * 64;
        #pragma unroll
        for (int s2 = 0; s2 < 4; ++s2) {
            const int at = (s2 * 128 + tid) * 8;
            const int i = at / 64;
            const int j = at % 64;
            alignas(16) bf16 kv_v[8];
            ld_global_if<16>(kv_v, kv_at + i * 64 + j, b * 64 + i < n);
            alignas(16) bf16 kt_v[8];
            #pragma unroll
            for (int v = 0; v < 8; ++v) {
                kt_v[v] = kv_v[v];
            }
            st<16>(kt + i * 72 + j, kt_v);
        }
        __syncthreads();  // qt: written at emit_kernels.rs:5:5, read next

        // emit_kernels.rs:8:5: gemm = [64, 64] x [64, 64], bf16 x bf16, matrix unit
        {
            const int row0 = (warp / 2) * 32;
            const int col0 = (warp % 2) * 32;
            #pragma unroll
            for (int i = 0; i < 32; ++i) {
                s[i] = 0.0f;
            }
            #pragma unroll
            for (int k = 0; k < 64; k += 16) {
                u32 x[2][4];
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    ldmatrix_x4(x[i], qt + (row0 + i * 16 + lane % 16) * 72 + k + lane / 16 * 8);
                }
                u32 y[2][4];
                #pragma unroll
                for (int j = 0; j < 2; ++j) {
                    ldmatrix_x4(y[j], kt + k + lane / 8 % 2 * 8 + (col0 + j * 16 + lane / 16 * 8 + lane % 8) * 72);
                }
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        mma_bf16_16x8x16(reinterpret_cast<float (&)[4]>(s[(i * 4 + j) * 4]), x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
                    }
                }
            }
        }
        float* const masked = (float*)(shared + 28160);

        // emit_kernels.rs:9:5: parallel [64, 64]
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            #pragma unroll
            for (int s2 = 0; s2 < 8; ++s2) {
                const int i = (warp / 2) * 32 + r * 16 + s2 % 2 * 8 + lane / 4;
                const int j = (warp % 2) * 32 + s2 / 2 * 8 + lane % 4 * 2;
                alignas(16) float masked_v[2];
                #pragma unroll
                for (int v = 0; v < 2; ++v) {
                    masked_v[v] = b * 64 + j + v < n ? s[(r * 8 + s2) * 2 + v] * 0.125f : -1e30f;
                }
                st<8>(masked + i * 64 + j, masked_v);
            }
        }
        float top[4];
        __syncthreads();  // masked: written at emit_kernels.rs:9:5, read next

        // emit_kernels.rs:10:5: reduce_max along axis 1
        #pragma unroll
        for (int r = 0; r < 4; ++r) {
            float acc = __uint_as_float(0x7fc00000u);
            alignas(16) float x[8];
            ld<16>(x, masked + (r * 16 + group8) * 64 + lane8 * 8);
            #pragma unroll
            for (int v = 0; v < 8; ++v) {
                acc = fmaxf(acc, x[v]);
            }
            top[r] = reduce_lanes<Max, 8>(acc);
        }

        // emit_kernels.rs:11:5: parallel [64]
        #pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int i = r * 16 + group8;
            const float mx_i = mx[r];
            const float t = fmaxf(mx_i, top[r]);
            if (lane8 == 0) alpha[i] = exp2f(mx_i - t);
            mx[r] = t;
        }

        // emit_kernels.rs:12:5: parallel [64, 64]
        #pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int i = r * 16 + group8;
            const int j = lane8 * 8;
            alignas(16) float masked_v[8];
            ld<16>(masked_v, masked + i * 64 + j);
            alignas(16) float pt_v[8];
            #pragma unroll
            for (int v = 0; v < 8; ++v) {
                const float t = exp2f(masked_v[v] - mx[r]);
                p[r * 8 + v] = t;
                pt_v[v] = t;
            }
            alignas(16) bf16 pt_n[8];
            f32_to_bf16(pt_n, pt_v);
            st<16>(pt + i * 72 + j, pt_n);
        }
        float* const sum = (float*)(shared + 44544);

        // emit_kernels.rs:13:5: reduce_sum along axis 1
        #pragma unroll
        for (int r = 0; r < 4; ++r) {
            float acc = -0.0f;
            #pragma unroll
            for (int v = 0; v < 8; ++v) {
                acc = acc + p[r * 8 + v];
            }
            acc = reduce_lanes<Sum, 8>(acc);
            if (lane8 == 0) sum[r * 16 + group8] = acc;
        }
        __syncthreads();  // alpha: written at emit_kernels.rs:11:5, read next

        // emit_kernels.rs:14:5: parallel [64]
        {
            if (tid < 64) {
                const float l_i = l[tid];
                const float alpha_i = alpha[tid];
                const float sum_i = sum[tid];
                l[tid] = l_i * alpha_i + sum_i;
            }
        }

        // emit_kernels.rs:15:5: parallel [64, 64]
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            #pragma unroll
            for (int s2 = 0; s2 < 8; ++s2) {
                const int i = (warp / 2) * 32 + r * 16 + s2 % 2 * 8 + lane / 4;
                const float alpha_i = alpha[i];
                #pragma unroll
                for (int v = 0; v < 2; ++v) {
                    const float o_i = o[(r * 8 + s2) * 2 + v];
                    o[(r * 8 + s2) * 2 + v] = o_i * alpha_i;
                }
            }
        }

        // emit_kernels.rs:16:5: gemm += [64, 64] x [64, 64], bf16 x bf16, matrix unit
        {
            const int row0 = (warp / 2) * 32;
            const int col0 = (warp % 2) * 32;
            #pragma unroll
            for (int k = 0; k < 64; k += 16) {
                u32 x[2][4];
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    ldmatrix_x4(x[i], pt + (row0 + i * 16 + lane % 16) * 72 + k + lane / 16 * 8);
                }
                u32 y[2][4];
                #pragma unroll
                for (int j = 0; j < 2; ++j) {
                    ldmatrix_x4_trans(y[j], kt + (k + lane % 16) * 72 + col0 + j * 16 + lane / 16 * 8);
                }
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        mma_bf16_16x8x16(reinterpret_cast<float (&)[4]>(o[(i * 4 + j) * 4]), x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
                    }
                }
            }
        }
    }
    __syncthreads();  // l: written at emit_kernels.rs:14:5, read next

    // emit_kernels.rs:17:5: parallel [64, 64]
    bf16* const out_at = out + bx * 64 * 64;
    #pragma unroll
    for (int r = 0; r < 2; ++r) {
        #pragma unroll
        for (int s2 = 0; s2 < 8; ++s2) {
            const int i = (warp / 2) * 32 + r * 16 + s2 % 2 * 8 + lane / 4;
            const int j = (warp % 2) * 32 + s2 / 2 * 8 + lane % 4 * 2;
            const float l_i = l[i];
            alignas(16) float out_v[2];
            #pragma unroll
            for (int v = 0; v < 2; ++v) {
                out_v[v] = __fdiv_rn(o[(r * 8 + s2) * 2 + v], l_i);
            }
            alignas(16) bf16 out_n[2];
            f32_to_bf16(out_n, out_v);
            if (bx * 64 + i < m) st<4>(out_at + i * 64 + j, out_n);
        }
    }
}
