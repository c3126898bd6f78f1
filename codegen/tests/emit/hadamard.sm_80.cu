// hadamard (emit_kernels.rs:1:5)
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

extern "C" __global__ void __launch_bounds__(32)
hadamard(float* __restrict__ x) {
    extern __shared__ __align__(16) u8 shared[];
    const int tid = threadIdx.x;
    const int bx = blockIdx.x;
    float* const f = (float*)shared;

    // emit_kernels.rs:2:5: parallel [1, 256]
    float* const x_at = x + bx * 256;
    #pragma unroll
    for (int s = 0; s < 2; ++s) {
        const int j = (s * 32 + tid) * 4;
        alignas(16) float x_v[4];
        ld<16>(x_v, x_at + j);
        alignas(16) float f_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            f_v[v] = x_v[v];
        }
        st<16>(f + j, f_v);
    }
    __syncthreads();  // f: written at emit_kernels.rs:2:5, read next

    // emit_kernels.rs:3:5: parallel [1, 128]
    #pragma unroll
    for (int s = 0; s < 4; ++s) {
        const int e = s * 32 + tid;
        const float f_i = f[e];
        const float f_i2 = f[e + 128];
        f[e] = f_i + f_i2;
        f[e + 128] = f_i - f_i2;
    }
    __syncthreads();  // f: written at emit_kernels.rs:3:5, read next

    // emit_kernels.rs:4:5: parallel [2, 64]
    #pragma unroll
    for (int s = 0; s < 4; ++s) {
        const int at = s * 32 + tid;
        const int b = at / 64;
        const int e = at % 64;
        const float f_i = f[b * 128 + e];
        const float f_i2 = f[b * 128 + e + 64];
        f[b * 128 + e] = f_i + f_i2;
        f[b * 128 + e + 64] = f_i - f_i2;
    }
    __syncthreads();  // f: written at emit_kernels.rs:4:5, read next

    // emit_kernels.rs:5:5: parallel [1, 256]
    float* const x_at2 = x + bx * 256;
    #pragma unroll
    for (int s = 0; s < 2; ++s) {
        const int j = (s * 32 + tid) * 4;
        alignas(16) float f_v[4];
        ld<16>(f_v, f + j);
        alignas(16) float x_v[4];
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
            x_v[v] = f_v[v];
        }
        st<16>(x_at2 + j, x_v);
    }
}
