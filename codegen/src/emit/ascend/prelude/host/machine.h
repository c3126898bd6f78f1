// Host prelude for AscendC, part 1: the way from emitted text to the machine (`codegen::machine::ascend`).
//
// Emitted text runs unchanged: the parts of this prelude stand in for the vendor's `kernel_operator.h`. Names and argument
// orders are the documented ones, the subset is what the emitter prints, and everything an instruction does is a call
// through the table below. Nothing is decided here. Lines of the text come from default arguments.
#include <cstdint>

#if !defined(__NPU_ARCH__) || (__NPU_ARCH__ != 2201 && __NPU_ARCH__ != 3510)
#error "compile with -D__NPU_ARCH__=2201 or -D__NPU_ARCH__=3510"
#endif

#define __aicore__
#define __global__
#define __gm__
#define __ubuf__
#define __cbuf__
#define __ca__
#define __cb__
#define __cc__
#define __vector__
#define __cube__
#define __mix__(cube, vector)
#define __simd_vf__
#define __simd_callee__
#define GM_ADDR uint8_t*
#define ASCEND_IS_AIC (kiln_lane->core == 0)
#define ASCEND_IS_AIV (kiln_lane->core != 0)

#if defined(__clang__)
#define KILN_PLAIN no_sanitize("coverage")
#elif defined(KILN_FUEL)
#define KILN_PLAIN no_sanitize_coverage
#else
#define KILN_PLAIN unused
#endif
#define KILN_LINE uint32_t line = __builtin_LINE()

#pragma GCC visibility push(hidden)

// Of the core that runs: 0 is the cube core, 1 and 2 are vector cores.
struct kiln_core_t {
    uint32_t core, block, blocks, mixed;
};
struct kiln_register_t {
    alignas(32) uint8_t bytes[256];
    uint8_t defined[32];
};
struct kiln_mask_t {
    alignas(32) uint8_t bits[32];
    uint32_t set;
};
struct kiln_operands_t {
    const kiln_register_t *a, *b;
    const kiln_mask_t* mask;
    uint64_t word, more;
};
struct kiln_table_t {
    uint64_t version;
    uint64_t (*op)(uint32_t code, const uint64_t* words, uint32_t count, uint32_t line);
    void (*function)(void (*run)(const void*), const void* arguments, uint32_t bytes, uint32_t line);
    void (*reg)(uint32_t code, uint32_t type, kiln_register_t* d, const kiln_operands_t* x, uint32_t line);
    void (*compare)(uint32_t code, uint32_t type, kiln_mask_t* d, const kiln_operands_t* x, uint32_t line);
    uint32_t (*encode)(uint32_t type, float x);
    float (*decode)(uint32_t type, uint32_t bits);
};
struct kiln_thread_t {
    const kiln_core_t** lane;
};

static const kiln_table_t* kiln;
static __thread const kiln_core_t* kiln_lane;
// Line of the last address that was taken, for calls that have no room for a default argument.
static __thread uint32_t kiln_last_line;

extern "C" __attribute__((visibility("default"), KILN_PLAIN)) void kiln_attach(
    const kiln_table_t* table, kiln_thread_t* thread)
{
    kiln = table;
    thread->lane = &kiln_lane;
}

// A loop without instructions must end too: the compiler announces every basic block.
#ifdef KILN_FUEL
static __thread uint32_t kiln_fuel;
extern "C" __attribute__((KILN_PLAIN)) void __sanitizer_cov_trace_pc()
{
    if ((++kiln_fuel & 0xffff) == 0) kiln->op(20, nullptr, 0, 0);
}
#endif

// What every instruction goes through.
template <class T> inline uint64_t kiln_word(T v)
{
    return (uint64_t)(int64_t)v;
}
template <class... W> inline uint64_t kiln_do(uint32_t code, uint32_t line, W... w)
{
    const uint64_t words[] = {kiln_word(w)..., 0};
    return kiln->op(code, words, sizeof...(W), line);
}

// ---- element types -------------------------------------------------------------------------------
enum kiln_type_t : uint32_t {
    KILN_F32, KILN_F16, KILN_BF16, KILN_E4M3, KILN_E5M2, KILN_I8, KILN_U8, KILN_I16, KILN_U16, KILN_I32, KILN_U32,
    KILN_I64, KILN_U64
};
struct half {
    uint16_t bits;
    half() = default;
    half(float x) : bits((uint16_t)kiln->encode(KILN_F16, x)) {}
    operator float() const { return kiln->decode(KILN_F16, bits); }
};
struct bfloat16_t {
    uint16_t bits;
    bfloat16_t() = default;
    bfloat16_t(float x) : bits((uint16_t)kiln->encode(KILN_BF16, x)) {}
};
struct fp8_e4m3fn_t {
    uint8_t bits;
};
struct fp8_e5m2_t {
    uint8_t bits;
};
template <class T> struct kiln_type;
template <> struct kiln_type<float> { static constexpr uint32_t value = KILN_F32; };
template <> struct kiln_type<half> { static constexpr uint32_t value = KILN_F16; };
template <> struct kiln_type<bfloat16_t> { static constexpr uint32_t value = KILN_BF16; };
template <> struct kiln_type<fp8_e4m3fn_t> { static constexpr uint32_t value = KILN_E4M3; };
template <> struct kiln_type<fp8_e5m2_t> { static constexpr uint32_t value = KILN_E5M2; };
template <> struct kiln_type<int8_t> { static constexpr uint32_t value = KILN_I8; };
template <> struct kiln_type<uint8_t> { static constexpr uint32_t value = KILN_U8; };
template <> struct kiln_type<int16_t> { static constexpr uint32_t value = KILN_I16; };
template <> struct kiln_type<uint16_t> { static constexpr uint32_t value = KILN_U16; };
template <> struct kiln_type<int32_t> { static constexpr uint32_t value = KILN_I32; };
template <> struct kiln_type<uint32_t> { static constexpr uint32_t value = KILN_U32; };
template <> struct kiln_type<int64_t> { static constexpr uint32_t value = KILN_I64; };
template <> struct kiln_type<uint64_t> { static constexpr uint32_t value = KILN_U64; };
// A parameter that takes the type other parameters decide.
template <class T> struct kiln_same {
    typedef T type;
};
template <class T> inline uint64_t kiln_bits(T v)
{
    uint64_t w = 0;
    __builtin_memcpy(&w, &v, sizeof(T));
    return w;
}

// ---- the entry: arguments come as 64-bit words and take the types the kernel declares ----------------
template <class T> inline T kiln_argument(uint64_t w)
{
    T v;
    __builtin_memcpy(&v, &w, sizeof(T));
    return v;
}
template <int... I> struct kiln_seq {};
template <int N, int... I> struct kiln_make_seq : kiln_make_seq<N - 1, N - 1, I...> {};
template <int... I> struct kiln_make_seq<0, I...> {
    typedef kiln_seq<I...> type;
};
template <class... A, int... I>
__attribute__((KILN_PLAIN)) inline void kiln_call(void (*f)(A...), const uint64_t* words, kiln_seq<I...>)
{
    (void)words;
    f(kiln_argument<A>(words[I])...);
}
template <class... A> __attribute__((KILN_PLAIN)) inline void kiln_call(void (*f)(A...), const uint64_t* words)
{
    kiln_call(f, words, typename kiln_make_seq<sizeof...(A)>::type());
}
template <class... A> constexpr uint32_t kiln_arity(void (*)(A...))
{
    return sizeof...(A);
}
