// Host prelude, part 1: the function table of the machine and the built-in variables of the language.
//
// Emitted text is compiled with this instead of the device prelude. Nothing is decided here: every operation that another
// thread could notice is one call through the table, and its meaning and checks are in the machine (`codegen::machine`).
// The `line` at the end of a function is the caller's, so that reports name a line of the emitted text.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef long long i64;

struct kiln_dim3 { u32 x, y, z; };
struct kiln_lane_t { kiln_dim3 thread, block, block_dim, grid; };

struct kiln_table_t {
    u64 version;
    void (*shared_load)(u32 address, void* out, u32 bytes, u32 line);
    void (*shared_store)(u32 address, const void* data, u32 bytes, u32 line);
    u32 (*shared_atomic)(u32 address, u32 op, u32 is_signed, u32 value, u32 line);
    void (*global_load)(u64 address, void* out, u32 bytes, u32 line);
    void (*global_store)(u64 address, const void* data, u32 bytes, u32 line);
    u32 (*global_atomic)(u64 address, u32 op, u32 is_signed, u32 value, u32 line);
    u32 (*barrier)(u32 id, u32 count, u32 vote, u32 value, u32 line);
    void (*warp)(u32 op, u32 width, u32 mask, const u32* operands, u32 count, u32* results, u32 line);
    void (*copy_async)(u32 to, u64 from, u32 bytes, u32 valid, u32 line);
    void (*copy_commit)(u32 line);
    void (*copy_wait)(u32 pending, u32 line);
    float (*math)(u32 function, float x);
    u32 (*encode)(u32 format, float x);
    float (*decode)(u32 format, u32 bits);
};

static const kiln_table_t* kiln;
static thread_local const kiln_lane_t* kiln_lane;
extern "C" __attribute__((visibility("default"))) const kiln_lane_t** kiln_attach(const kiln_table_t* table) {
    kiln = table;
    return &kiln_lane;
}

#define threadIdx (kiln_lane->thread)
#define blockIdx (kiln_lane->block)
#define blockDim (kiln_lane->block_dim)
#define gridDim (kiln_lane->grid)
#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define KILN_AT u32 line = __builtin_LINE()

// The entry: arguments come as 64-bit words and take the types the kernel declares.
template <class T> struct kiln_word { static T get(u64 w) { T v; __builtin_memcpy(&v, &w, sizeof(T)); return v; } };
template <int... I> struct kiln_seq {};
template <int N, int... I> struct kiln_make_seq : kiln_make_seq<N - 1, N - 1, I...> {};
template <int... I> struct kiln_make_seq<0, I...> { typedef kiln_seq<I...> type; };
template <class... A, int... I> static void kiln_call(void (*f)(A...), const u64* words, kiln_seq<I...>) {
    f(kiln_word<A>::get(words[I])...);
}
template <class... A> static void kiln_call(void (*f)(A...), const u64* words) {
    kiln_call(f, words, typename kiln_make_seq<sizeof...(A)>::type());
}
template <class... A> static constexpr u32 kiln_arity(void (*)(A...)) { return sizeof...(A); }
