// gemm_bf16 (emit_kernels.rs:1:5)
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

extern "C" __global__ void __launch_bounds__(256, 1)
gemm_bf16(const bf16* __restrict__ a, const bf16* __restrict__ b, bf16* __restrict__ c, int m, int k, int n) {
    extern __shared__ __align__(16) u8 shared[];
    const int tid = threadIdx.x;
    const int lane = tid % 32, warp = tid / 32;
    const int bx = blockIdx.x;
    const int by = blockIdx.y;
    float acc[64];
    bf16* const at = (bf16*)shared;
    bf16* const bt = (bf16*)(shared + 18432);

    // emit_kernels.rs:2:5: parallel [128, 128]
    #pragma unroll
    for (int r = 0; r < 2; ++r) {
        #pragma unroll
        for (int s = 0; s < 16; ++s) {
            #pragma unroll
            for (int v = 0; v < 2; ++v) {
                acc[(r * 16 + s) * 2 + v] = 0.0f;
            }
        }
    }

    // emit_kernels.rs:6:5: loop
    for (int kb = 0; kb < (k + 63) / 64; ++kb) {
        __syncthreads();  // at: read at emit_kernels.rs:6:5, written next

        // emit_kernels.rs:4:5: parallel [128, 64]
        const bf16* const a_at = a + by * 128 * k + kb * 64;
        #pragma unroll
        for (int s = 0; s < 4; ++s) {
            const int at2 = (s * 256 + tid) * 8;
            const int i = at2 / 64;
            const int j = at2 % 64;
            alignas(16) bf16 a_v[8];
            ld_global_if<16>(a_v, a_at + i * k + j, by * 128 + i < m && kb * 64 + j < k);
            alignas(16) bf16 at_v[8];
            #pragma unroll
            for (int v = 0; v < 8; ++v) {
                at_v[v] = a_v[v];
            }
            st<16>(at + i * 72 + j, at_v);
        }

        // emit_kernels.rs:5:5: parallel [128, 64]
        const bf16* const b_at = b + bx * 128 * k + kb * 64;
        #pragma unroll
        for (int s = 0; s < 4; ++s) {
            const int at2 = (s * 256 + tid) * 8;
            const int i = at2 / 64;
            const int j = at2 % 64;
            alignas(16) bf16 b_v[8];
            ld_global_if<16>(b_v, b_at + i * k + j, bx * 128 + i < n && kb * 64 + j < k);
            alignas(16) bf16 bt_v[8];
            #pragma unroll
            for (int v = 0; v < 8; ++v) {
                bt_v[v] = b_v[v];
            }
            st<16>(bt + i * 72 + j, bt_v);
        }
        __syncthreads();  // at: written at emit_kernels.rs:4:5, read next

        // emit_kernels.rs:6:5: gemm += [128, 64] x [64, 128], bf16 x bf16, matrix unit
        {
            const int row0 = (warp / 2) * 32;
            const int col0 = (warp % 2) * 64;
            #pragma unroll
            for (int k2 = 0; k2 < 64; k2 += 16) {
                u32 x[2][4];
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    ldmatrix_x4(x[i], at + (row0 + i * 16 + lane % 16) * 72 + k2 + lane / 16 * 8);
                }
                u32 y[4][4];
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                    ldmatrix_x4(y[j], bt + k2 + lane / 8 % 2 * 8 + (col0 + j * 16 + lane / 16 * 8 + lane % 8) * 72);
                }
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    #pragma unroll
                    for (int j = 0; j < 8; ++j) {
                        mma_bf16_16x8x16(reinterpret_cast<float (&)[4]>(acc[(i * 8 + j) * 4]), x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
                    }
                }
            }
        }
    }

    // emit_kernels.rs:7:5: parallel [128, 128]
    bf16* const c_at = c + by * 128 * n + bx * 128;
    #pragma unroll
    for (int r = 0; r < 2; ++r) {
        #pragma unroll
        for (int s = 0; s < 16; ++s) {
            const int i = (warp / 2) * 32 + r * 16 + s % 2 * 8 + lane / 4;
            const int j = (warp % 2) * 64 + s / 2 * 8 + lane % 4 * 2;
            alignas(16) float c_v[2];
            #pragma unroll
            for (int v = 0; v < 2; ++v) {
                c_v[v] = acc[(r * 16 + s) * 2 + v];
            }
            alignas(16) bf16 c_n[2];
            f32_to_bf16(c_n, c_v);
            if (by * 128 + i < m && bx * 128 + j < n) st<4>(c_at + i * n + j, c_n);
        }
    }
}
