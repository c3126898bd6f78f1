// pairs (emit_kernels.rs:1:5)
// Names of the element types. Floats narrower than 32 bits are bit patterns; arithmetic happens in f32.
typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef unsigned int u32;
typedef long long i64; typedef unsigned long long u64;
typedef u16 bf16; typedef u16 f16; typedef u8 e4m3; typedef u8 e5m2; typedef u8 e8m0;
#define DEV __device__ __forceinline__

// e2m1: one code in the low bits of a byte. Nearest even, saturating; NaN becomes the largest.
DEV float e2m1_to_f32(u8 x) {
    const u32 m = x & 7, normal = ((m >> 1) + 126) << 23 | (m & 1) << 22;
    return __uint_as_float((u32)(x & 8) << 28 | (m < 2 ? (m == 0 ? 0u : 0x3f000000u) : normal));
}
DEV u8 f32_to_e2m1(float x) {
    const u32 bits = __float_as_uint(x), sign = bits >> 28 & 8;
    const float a = __uint_as_float(bits & 0x7fffffff);
    if (a != a) return 7;
    // Halfway between two codes the even one wins.
    const u32 code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return (u8)(sign | code);
}

extern "C" __global__ void __launch_bounds__(128)
pairs(const float* __restrict__ x, u8* __restrict__ q) {
    const int tid = threadIdx.x;
    const int bx = blockIdx.x;

    // emit_kernels.rs:3:5: parallel [96]
    const float* const x_at = x + bx * 90;
    {
        const int j = tid * 16;
        if (j < 96) {
            alignas(16) u8 q_v[16];
            #pragma unroll
            for (int v = 0; v < 16; ++v) {
                const float x_i = j + v < 90 ? x_at[j + v] : 0.0f;
                q_v[v] = f32_to_e2m1(x_i);
            }
            #pragma unroll
            for (int v = 0; v < 16; v += 2) {
                if (j + v < 90) q[(bx * 90 + j + v) / 2] = q_v[v] | q_v[v + 1] << 4;
            }
        }
    }
}
