// turns (emit_kernels.rs:1:5)
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

extern "C" __global__ void __launch_bounds__(256, 1)
turns(const float* __restrict__ x, float* __restrict__ y, float* __restrict__ z, int m) {
    extern __shared__ __align__(16) u8 shared[];
    const int tid = threadIdx.x;
    const int bx = blockIdx.x;

    // emit_kernels.rs:6:5: loop
    for (int c = 0; c < 2; ++c) {
        float* const first = (float*)shared;
        __syncthreads();  // first takes the memory of second: read at emit_kernels.rs:6:5

        // emit_kernels.rs:3:5: parallel [192, 160]
        const float* const x_at = x + bx * 192 * 160;
        #pragma unroll 4
        for (int s = 0; s < 30; ++s) {
            const int at = (s * 256 + tid) * 4;
            const int i = at / 160;
            const int j = at % 160;
            alignas(16) float x_v[4];
            ld_global_if<16>(x_v, x_at + i * 160 + j, bx * 192 + i < m);
            alignas(16) float first_v[4];
            #pragma unroll
            for (int v = 0; v < 4; ++v) {
                first_v[v] = x_v[v];
            }
            st<16>(first + i * 160 + j, first_v);
        }
        __syncthreads();  // first: written at emit_kernels.rs:3:5, read next

        // emit_kernels.rs:4:5: parallel [192, 160]
        float* const y_at = y + bx * 192 * 160;
        #pragma unroll 4
        for (int s = 0; s < 30; ++s) {
            const int at = (s * 256 + tid) * 4;
            const int i = at / 160;
            const int j = at % 160;
            alignas(16) float y_v[4];
            #pragma unroll
            for (int v = 0; v < 4; ++v) {
                const float first_i = first[i * 160 - (j + v) + 159];
                y_v[v] = first_i;
            }
            if (bx * 192 + i < m) st<16>(y_at + i * 160 + j, y_v);
        }
        float* const second = (float*)shared;
        __syncthreads();  // second takes the memory of first: read at emit_kernels.rs:4:5

        // emit_kernels.rs:5:5: parallel [192, 160]
        const float* const x_at2 = x + bx * 192 * 160;
        #pragma unroll 4
        for (int s = 0; s < 30; ++s) {
            const int at = (s * 256 + tid) * 4;
            const int i = at / 160;
            const int j = at % 160;
            alignas(16) float x_v[4];
            ld_global_if<16>(x_v, x_at2 + i * 160 + j, bx * 192 + i < m);
            alignas(16) float second_v[4];
            #pragma unroll
            for (int v = 0; v < 4; ++v) {
                second_v[v] = x_v[v];
            }
            st<16>(second + i * 160 + j, second_v);
        }
        __syncthreads();  // second: written at emit_kernels.rs:5:5, read next

        // emit_kernels.rs:6:5: parallel [192, 160]
        float* const z_at = z + bx * 192 * 160;
        #pragma unroll 4
        for (int s = 0; s < 30; ++s) {
            const int at = (s * 256 + tid) * 4;
            const int i = at / 160;
            const int j = at % 160;
            alignas(16) float z_v[4];
            #pragma unroll
            for (int v = 0; v < 4; ++v) {
                const float second_i = second[i * 160 - (j + v) + 159];
                z_v[v] = second_i;
            }
            if (bx * 192 + i < m) st<16>(z_at + i * 160 + j, z_v);
        }
    }
}
