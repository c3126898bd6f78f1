// vector_add (emit_kernels.rs:1:5)
// Names of the element types. Floats narrower than 32 bits are bit patterns; arithmetic happens in f32.
typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef unsigned int u32;
typedef long long i64; typedef unsigned long long u64;
typedef u16 bf16; typedef u16 f16; typedef u8 e4m3; typedef u8 e5m2; typedef u8 e8m0;
#define DEV __device__ __forceinline__

extern "C" __global__ void __launch_bounds__(128)
vector_add(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ z, int n) {
    const int tid = threadIdx.x;
    const int bx = blockIdx.x;

    // emit_kernels.rs:2:5: parallel [2048]
    const float* const x_at = x + bx * 2048;
    const float* const y_at = y + bx * 2048;
    float* const z_at = z + bx * 2048;
    #pragma unroll 4
    for (int s = 0; s < 16; ++s) {
        const int i = s * 128 + tid;
        const float x_i = bx * 2048 + i < n ? x_at[i] : 0.0f;
        const float y_i = bx * 2048 + i < n ? y_at[i] : 0.0f;
        if (bx * 2048 + i < n) z_at[i] = x_i + y_i;
    }
}
