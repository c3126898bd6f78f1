// Host prelude, part 2: what CUDA C++ knows without any header.
#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __shared__ __thread
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
// The block's shared memory is aligned enough where it is.
#define __align__(n)
#undef __restrict__
#define __restrict__

static KILN_CALL kiln_dim3 kiln_thread_index() { return kiln_lane->thread; }
static KILN_CALL kiln_dim3 kiln_block_index() { return kiln_lane->block; }
static KILN_CALL kiln_dim3 kiln_block_dim() { return kiln_lane->block_dim; }
static KILN_CALL kiln_dim3 kiln_grid_dim() { return kiln_lane->grid; }
#define threadIdx (kiln_thread_index())
#define blockIdx (kiln_block_index())
#define blockDim (kiln_block_dim())
#define gridDim (kiln_grid_dim())

struct alignas(8) uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

// --- barriers and warps ---
static KILN_CALL void __syncthreads() { kiln->barrier(0, 0, 0, 0, KILN_HERE); }
static KILN_CALL int __syncthreads_or(int v) { return kiln->barrier(0, 0, 1, v != 0, KILN_HERE); }
static KILN_CALL int __syncthreads_and(int v) { return kiln->barrier(0, 0, 2, v != 0, KILN_HERE); }
static KILN_CALL int __syncthreads_count(int v) { return kiln->barrier(0, 0, 3, v != 0, KILN_HERE); }
static KILN_CALL void __syncwarp(u32 mask = 0xffffffffu) {
    u32 r[4];
    kiln->warp(0, 32, mask, r, 0, r, KILN_HERE);
}
template <class T> static KILN_CALL T kiln_shuffle(u32 op, u32 mask, T v, u32 operand, u32 width, u32 place) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    u32 words[3] = {0, 0, operand}, r[4];
    __builtin_memcpy(words, &v, sizeof(T));
    kiln->warp(op, width, mask, words, 3, r, place);
    __builtin_memcpy(&v, r, sizeof(T));
    return v;
}
template <class T> static KILN_CALL T __shfl_sync(u32 mask, T v, int lane, int width = 32) { return kiln_shuffle(1, mask, v, lane, width, KILN_HERE); }
template <class T> static KILN_CALL T __shfl_up_sync(u32 mask, T v, u32 by, int width = 32) { return kiln_shuffle(2, mask, v, by, width, KILN_HERE); }
template <class T> static KILN_CALL T __shfl_down_sync(u32 mask, T v, u32 by, int width = 32) { return kiln_shuffle(3, mask, v, by, width, KILN_HERE); }
template <class T> static KILN_CALL T __shfl_xor_sync(u32 mask, T v, int bits, int width = 32) { return kiln_shuffle(4, mask, v, bits, width, KILN_HERE); }
static KILN_CALL u32 kiln_vote(u32 op, u32 mask, int v, u32 place) {
    u32 word = v != 0, r[4];
    kiln->warp(op, 32, mask, &word, 1, r, place);
    return r[0];
}
static KILN_CALL int __any_sync(u32 mask, int v) { return kiln_vote(5, mask, v, KILN_HERE); }
static KILN_CALL int __all_sync(u32 mask, int v) { return kiln_vote(6, mask, v, KILN_HERE); }
static KILN_CALL u32 __ballot_sync(u32 mask, int v) { return kiln_vote(7, mask, v, KILN_HERE); }

// --- atomics: announced, then performed; no other thread runs in between ---
template <class T> struct kiln_same { typedef T type; };
#define KILN_ATOMIC_OP(name, expression) \
    template <class T> static KILN_CALL T name(T* p, typename kiln_same<T>::type v) { \
        kiln->access((u64)p, sizeof(T), KILN_ATOMIC, KILN_HERE); \
        const T old = *p; \
        *p = expression; \
        return old; \
    }
KILN_ATOMIC_OP(atomicAdd, old + v)
KILN_ATOMIC_OP(atomicMax, old < v ? v : old)
KILN_ATOMIC_OP(atomicMin, v < old ? v : old)
KILN_ATOMIC_OP(atomicOr, old | v)
KILN_ATOMIC_OP(atomicAnd, old & v)
KILN_ATOMIC_OP(atomicExch, v)

// --- numbers ---
template <class D, class S> inline D kiln_bits(S s) {
    static_assert(sizeof(D) == sizeof(S), "same width");
    D d;
    __builtin_memcpy(&d, &s, sizeof(D));
    return d;
}
inline float __uint_as_float(u32 x) { return kiln_bits<float>(x); }
inline u32 __float_as_uint(float x) { return kiln_bits<u32>(x); }
inline float __int_as_float(int x) { return kiln_bits<float>(x); }
inline int __float_as_int(float x) { return kiln_bits<int>(x); }
inline int __float2int_rz(float x) {
    return x != x ? 0 : x >= 2147483648.0f ? 2147483647 : x <= -2147483648.0f ? -2147483647 - 1 : (int)x;
}
inline u32 __float2uint_rz(float x) { return !(x > 0) ? 0 : x >= 4294967296.0f ? 0xffffffffu : (u32)x; }
inline i64 __float2ll_rz(float x) {
    const i64 least = -9223372036854775807ll - 1;
    return x != x ? least : x >= 9223372036854775808.0f ? 9223372036854775807ll : x <= -9223372036854775808.0f ? least : (i64)x;
}
// Towards zero: the nearest float, or its neighbour if that lies further out. A long double holds every 64-bit integer.
inline float kiln_towards_zero(long double x) {
    const float f = (float)x;
    const bool out = x < 0 ? (long double)f < x : (long double)f > x;
    return out ? kiln_bits<float>(kiln_bits<u32>(f) - 1) : f;
}
inline float __int2float_rz(int x) { return kiln_towards_zero(x); }
inline float __uint2float_rz(u32 x) { return kiln_towards_zero(x); }
inline float __ll2float_rz(i64 x) { return kiln_towards_zero(x); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline int __popc(u32 x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

// Names of the C library are macros, so that the compiler knows nothing about them.
#define exp2f(x) kiln_math(0, x)
#define log2f(x) kiln_math(1, x)
#define sinf(x) kiln_math(2, x)
#define cosf(x) kiln_math(3, x)
#define rsqrtf(x) kiln_math(4, x)
#define __fsqrt_rn(x) kiln_math(5, x)
#define floorf(x) kiln_math(6, x)
#define ceilf(x) kiln_math(7, x)
#define fabsf(x) __uint_as_float(__float_as_uint(x) & 0x7fffffffu)
#define fmaxf(x, y) kiln_math2(0, x, y)
#define fminf(x, y) kiln_math2(1, x, y)
#define __fmaf_rn(x, y, z) __builtin_fmaf(x, y, z)

// --- matrices: a lane's own row is read, then the warp exchanges ---
struct kiln_words { u32 w[4]; };
static KILN_CALL kiln_words kiln_matrix(u32 op, const void* row) {
    kiln_words own, r;
    kiln->access((u64)row, 16, KILN_READ, KILN_HERE);
    __builtin_memcpy(own.w, row, 16);
    kiln->warp(op, 32, 0xffffffffu, own.w, 4, r.w, KILN_HERE);
    return r;
}
__forceinline__ void ldmatrix_x4(u32 (&r)[4], const void* row) {
    const kiln_words v = kiln_matrix(8, row);
    for (int i = 0; i < 4; i++) r[i] = v.w[i];
}
__forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], const void* row) {
    const kiln_words v = kiln_matrix(9, row);
    for (int i = 0; i < 4; i++) r[i] = v.w[i];
}
struct kiln_sums { float s[4]; };
static KILN_CALL kiln_sums kiln_multiply(u32 op, kiln_words a, u32 b0, u32 b1, kiln_sums c) {
    u32 words[10] = {a.w[0], a.w[1], a.w[2], a.w[3], b0, b1}, r[4];
    __builtin_memcpy(words + 6, c.s, 16);
    kiln->warp(op, 32, 0xffffffffu, words, 10, r, KILN_HERE);
    __builtin_memcpy(c.s, r, 16);
    return c;
}
__forceinline__ void kiln_multiply(u32 op, float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const kiln_sums r = kiln_multiply(op, kiln_words{{a[0], a[1], a[2], a[3]}}, b0, b1, kiln_sums{{d[0], d[1], d[2], d[3]}});
    for (int i = 0; i < 4; i++) d[i] = r.s[i];
}
__forceinline__ void mma_bf16_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { kiln_multiply(10, d, a, b0, b1); }
__forceinline__ void mma_f16_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { kiln_multiply(11, d, a, b0, b1); }

// --- asynchronous copies to shared memory ---
static KILN_CALL void cp_async16(void* to, const void* from, u32 valid_bytes = 16) {
    kiln->copy_async((u64)to, (u64)from, 16, valid_bytes, KILN_HERE);
}
static KILN_CALL void cp_async8(void* to, const void* from, u32 valid_bytes = 8) {
    kiln->copy_async((u64)to, (u64)from, 8, valid_bytes, KILN_HERE);
}
static KILN_CALL void cp_async4(void* to, const void* from, u32 valid_bytes = 4) {
    kiln->copy_async((u64)to, (u64)from, 4, valid_bytes, KILN_HERE);
}
static KILN_CALL void cp_async_commit() { kiln->copy_commit(KILN_HERE); }
template <int N> static KILN_CALL void cp_async_wait() { kiln->copy_wait(N, KILN_HERE); }
