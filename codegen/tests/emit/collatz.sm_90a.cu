// collatz (emit_kernels.rs:1:5)
// Names of the element types. Floats narrower than 32 bits are bit patterns; arithmetic happens in f32.
typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef unsigned int u32;
typedef long long i64; typedef unsigned long long u64;
typedef u16 bf16; typedef u16 f16; typedef u8 e4m3; typedef u8 e5m2; typedef u8 e8m0;
#define DEV __device__ __forceinline__

// Integer operations that are total: sums wrap, division by zero gives zero, long shifts shift everything out.
DEV int wrap_add(int a, int b) { return (int)((u32)a + (u32)b); }
DEV int wrap_sub(int a, int b) { return (int)((u32)a - (u32)b); }
DEV int wrap_mul(int a, int b) { return (int)((u32)a * (u32)b); }
DEV i64 wrap_add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEV i64 wrap_sub(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
DEV i64 wrap_mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
DEV u32 div_or_zero(u32 a, u32 b) { return b == 0 ? 0 : a / b; }
DEV u32 rem_or_zero(u32 a, u32 b) { return b == 0 ? 0 : a % b; }
DEV int div_or_zero(int a, int b) { return b == 0 ? 0 : b == -1 ? wrap_sub(0, a) : a / b; }
DEV int rem_or_zero(int a, int b) { return b == 0 || b == -1 ? 0 : a % b; }
DEV i64 div_or_zero(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? wrap_sub((i64)0, a) : a / b; }
DEV i64 rem_or_zero(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }
DEV u32 shift_left(u32 a, u32 n) { return n < 32 ? a << n : 0; }
DEV int shift_left(int a, u32 n) { return n < 32 ? (int)((u32)a << n) : 0; }
DEV i64 shift_left(i64 a, u64 n) { return n < 64 ? (i64)((u64)a << n) : 0; }
DEV u32 shift_right(u32 a, u32 n) { return n < 32 ? a >> n : 0; }
DEV int shift_right(int a, u32 n) { return a >> (n < 31 ? n : 31); }
DEV i64 shift_right(i64 a, u64 n) { return a >> (n < 63 ? n : 63); }

extern "C" __global__ void __launch_bounds__(32)
collatz(const u32* __restrict__ x, int* __restrict__ y) {
    const int tid = threadIdx.x;
    const int bx = blockIdx.x;
    const u32 x_i = x[bx];
    u32 value = x_i;
    int steps = 0;

    // emit_kernels.rs:2:5: loop
    for (;;) {
        const u32 value_now = value;
        if (value_now <= 1u) {
            break;
        }
        u32 t;
        if ((value_now & 1u) == 1u) {
            t = value_now * 3u + 1u;
        } else {
            t = value_now >> 1u;
        }
        value = t;
        const int steps_now = steps;
        steps = wrap_add(steps_now, 1);
    }
    const int steps_now = steps;
    if (tid == 0) y[bx] = steps_now;
}
