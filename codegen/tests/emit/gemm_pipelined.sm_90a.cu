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

// Copies from global to shared memory that run on while the thread goes on; bytes beyond the valid ones become zero.
DEV void cp_async16(void* to, const void* from, u32 valid_bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(valid_bytes) : "memory");
}
DEV void cp_async8(void* to, const void* from, u32 valid_bytes = 8) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
        :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(valid_bytes) : "memory");
}
DEV void cp_async4(void* to, const void* from, u32 valid_bytes = 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
        :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(valid_bytes) : "memory");
}
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEV void cp_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }

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
    bf16* const bt = (bf16*)(shared + 55296);

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

    // emit_kernels.rs:6:5: loop, copies run 2 iterations ahead
    for (int stage = 0; stage < 2; ++stage) {
        const int kb_ahead = stage;
        if (kb_ahead < (k + 63) / 64) {
            bf16* const at_ahead = at + stage * 9216;
            bf16* const bt_ahead = bt + stage * 9216;

            // emit_kernels.rs:4:5: parallel [128, 64]
            const bf16* const a_at = a + by * 128 * k + kb_ahead * 64;
            #pragma unroll
            for (int s = 0; s < 4; ++s) {
                const int at2 = (s * 256 + tid) * 8;
                const int i = at2 / 64;
                const int j = at2 % 64;
                cp_async16(at_ahead + i * 72 + j, a_at + i * k + j, by * 128 + i < m && kb_ahead * 64 + j < k ? 16 : 0);
            }

            // emit_kernels.rs:5:5: parallel [128, 64]
            const bf16* const b_at = b + bx * 128 * k + kb_ahead * 64;
            #pragma unroll
            for (int s = 0; s < 4; ++s) {
                const int at2 = (s * 256 + tid) * 8;
                const int i = at2 / 64;
                const int j = at2 % 64;
                cp_async16(bt_ahead + i * 72 + j, b_at + i * k + j, bx * 128 + i < n && kb_ahead * 64 + j < k ? 16 : 0);
            }
        }
        cp_async_commit();
    }
    for (int kb = 0; kb < (k + 63) / 64; ++kb) {
        cp_async_wait<1>();
        __syncthreads();  // the copies of all threads have arrived, and the oldest version is free
        {
            const int version = (kb + 2) % 3;
            const int kb_ahead = kb + 2;
            if (kb_ahead < (k + 63) / 64) {
                bf16* const at_ahead = at + version * 9216;
                bf16* const bt_ahead = bt + version * 9216;

                // emit_kernels.rs:4:5: parallel [128, 64]
                const bf16* const a_at = a + by * 128 * k + kb_ahead * 64;
                #pragma unroll
                for (int s = 0; s < 4; ++s) {
                    const int at2 = (s * 256 + tid) * 8;
                    const int i = at2 / 64;
                    const int j = at2 % 64;
                    cp_async16(at_ahead + i * 72 + j, a_at + i * k + j, by * 128 + i < m && kb_ahead * 64 + j < k ? 16 : 0);
                }

                // emit_kernels.rs:5:5: parallel [128, 64]
                const bf16* const b_at = b + bx * 128 * k + kb_ahead * 64;
                #pragma unroll
                for (int s = 0; s < 4; ++s) {
                    const int at2 = (s * 256 + tid) * 8;
                    const int i = at2 / 64;
                    const int j = at2 % 64;
                    cp_async16(bt_ahead + i * 72 + j, b_at + i * k + j, bx * 128 + i < n && kb_ahead * 64 + j < k ? 16 : 0);
                }
            }
            cp_async_commit();
        }
        const int version = (kb) % 3;
        bf16* const at_now = at + version * 9216;
        bf16* const bt_now = bt + version * 9216;

        // emit_kernels.rs:6:5: gemm += [128, 64] x [64, 128], bf16 x bf16, matrix unit
        {
            const int row0 = (warp / 2) * 32;
            const int col0 = (warp % 2) * 64;
            #pragma unroll
            for (int k2 = 0; k2 < 64; k2 += 16) {
                u32 x[2][4];
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    ldmatrix_x4(x[i], at_now + (row0 + i * 16 + lane % 16) * 72 + k2 + lane / 16 * 8);
                }
                u32 y[4][4];
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                    ldmatrix_x4(y[j], bt_now + k2 + lane / 8 % 2 * 8 + (col0 + j * 16 + lane / 16 * 8 + lane % 8) * 72);
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
    cp_async_wait<0>();

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
