// branches (emit_kernels.rs:1:5)
// Names of the element types. Floats narrower than 32 bits are bit patterns; arithmetic happens in f32.
typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef unsigned int u32;
typedef long long i64; typedef unsigned long long u64;
typedef u16 bf16; typedef u16 f16; typedef u8 e4m3; typedef u8 e5m2; typedef u8 e8m0;
#define DEV __device__ __forceinline__

extern "C" __global__ void __launch_bounds__(64)
branches(const int* __restrict__ pick, const float* __restrict__ table, float* __restrict__ y, int n, int m) {
    const int tid = threadIdx.x;
    const int bx = blockIdx.x;

    // emit_kernels.rs:2:5: parallel [256]
    const int* const pick_at = pick + bx * 256;
    float* const y_at = y + bx * 256;
    #pragma unroll
    for (int s = 0; s < 4; ++s) {
        const int i = s * 64 + tid;
        const int pick_i = bx * 256 + i < n ? pick_at[i] : 0;
        const float table_i = (u32)pick_i < (u32)m ? table[(i64)pick_i] : -1.0f;
        float t;
        if (table_i < 0.0f) {
            const float y_i = bx * 256 + i < n ? y_at[i] : 0.0f;
            t = y_i;
        } else {
            float sum = 0.0f;
            for (int e = 0; e < 3; ++e) {
                const float sum_now = sum;
                sum = sum_now + table_i;
            }
            const float sum_now = sum;
            t = sum_now;
        }
        if (bx * 256 + i < n) y_at[i] = t;
    }
}
