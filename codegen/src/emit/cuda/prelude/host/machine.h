// Host prelude, part 1: the way from emitted text to the machine.
//
// Emitted text runs unchanged: it is compiled for the host with this in front, and only snippets of the device prelude
// that hold inline PTX are replaced (the other files here). Its ordinary loads and stores are announced by the compiler:
// the text is compiled with the instrumentation of the thread sanitizer, and the functions that instrumentation calls
// stand here instead of in a library. Everything else another thread could notice is a call through the table. Nothing
// is decided here; meaning and checks are in the machine (`codegen::machine`).
//
// A place in the program is the address of a call, from the start of the object; the runner finds its line when a report
// needs it.
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#pragma GCC visibility push(hidden)

// Called, not inlined, and not announced to the machine.
#if defined(__clang__)
#define KILN_PLAIN no_sanitize("thread"), no_sanitize("coverage")
#elif defined(KILN_FUEL)
#define KILN_PLAIN no_sanitize("thread"), no_sanitize_coverage
#else
#define KILN_PLAIN no_sanitize("thread")
#endif
#define KILN_CALL __attribute__((noinline, KILN_PLAIN))
#define KILN_HERE ((u32)((const u8*)__builtin_return_address(0) - 1 - __ehdr_start))

struct kiln_dim3 { u32 x, y, z; };
struct kiln_lane_t {
    kiln_dim3 thread, block, block_dim, grid;
    u64 stack, stack_bytes;
};
struct kiln_table_t {
    u64 version;
    // Announces an access of this thread. Returns if it may be performed.
    void (*access)(u64 address, u32 bytes, u32 use, u32 place);
    // Announces that this thread went through many basic blocks.
    void (*spin)(u32 place);
    u32 (*barrier)(u32 id, u32 count, u32 vote, u32 value, u32 place);
    void (*warp)(u32 op, u32 width, u32 mask, const u32* operands, u32 count, u32* results, u32 place);
    void (*copy_async)(u64 to, u64 from, u32 bytes, u32 valid, u32 place);
    void (*copy_commit)(u32 place);
    void (*copy_wait)(u32 pending, u32 place);
    float (*math)(u32 function, float x);
    float (*math2)(u32 function, float x, float y);
    u32 (*encode)(u32 format, float x);
    float (*decode)(u32 format, u32 bits);
};
struct kiln_thread_t { const kiln_lane_t** lane; u8* shared; u64 shared_bytes; };

extern "C" const u8 __ehdr_start[], _end[];
static const kiln_table_t* kiln;
static __thread const kiln_lane_t* kiln_lane;
// A block's shared memory, with room for accesses past its end.
enum { KILN_SHARED_BYTES = 256 * 1024 };
alignas(1024) __thread u8 shared[KILN_SHARED_BYTES];

extern "C" __attribute__((visibility("default"), KILN_PLAIN))
void kiln_attach(const kiln_table_t* table, kiln_thread_t* thread) {
    kiln = table;
    thread->lane = &kiln_lane;
    thread->shared = shared;
    thread->shared_bytes = KILN_SHARED_BYTES;
}

enum { KILN_READ = 0, KILN_WRITE = 1, KILN_ATOMIC = 2 };

// A thread's own stack and the object's constants are nobody else's business.
#define KILN_OWN(p) ((u64)(p) - kiln_lane->stack < kiln_lane->stack_bytes || (u64)(p) - (u64)__ehdr_start < (u64)(_end - __ehdr_start))
#define KILN_ANNOUNCE(name, bytes, use) \
    extern "C" KILN_CALL void name(void* p) { if (!KILN_OWN(p)) kiln->access((u64)p, bytes, use, KILN_HERE); }
#define KILN_ANNOUNCE_SIZE(n) \
    KILN_ANNOUNCE(__tsan_read##n, n, KILN_READ) KILN_ANNOUNCE(__tsan_write##n, n, KILN_WRITE) \
    KILN_ANNOUNCE(__tsan_volatile_read##n, n, KILN_READ) KILN_ANNOUNCE(__tsan_volatile_write##n, n, KILN_WRITE)
KILN_ANNOUNCE_SIZE(1) KILN_ANNOUNCE_SIZE(2) KILN_ANNOUNCE_SIZE(4) KILN_ANNOUNCE_SIZE(8) KILN_ANNOUNCE_SIZE(16)
// What the compiler knows to be unaligned may still be aligned when it runs; the machine looks at the address.
KILN_ANNOUNCE(__tsan_unaligned_read2, 2, KILN_READ) KILN_ANNOUNCE(__tsan_unaligned_write2, 2, KILN_WRITE)
KILN_ANNOUNCE(__tsan_unaligned_read4, 4, KILN_READ) KILN_ANNOUNCE(__tsan_unaligned_write4, 4, KILN_WRITE)
KILN_ANNOUNCE(__tsan_unaligned_read8, 8, KILN_READ) KILN_ANNOUNCE(__tsan_unaligned_write8, 8, KILN_WRITE)
KILN_ANNOUNCE(__tsan_unaligned_read16, 16, KILN_READ) KILN_ANNOUNCE(__tsan_unaligned_write16, 16, KILN_WRITE)
static KILN_CALL void kiln_access_bytes(void* p, u64 bytes, u32 use, u32 place) {
    if (bytes <= 16 && (bytes & (bytes - 1)) == 0) return kiln->access((u64)p, bytes, use, place);
    for (u64 i = 0; i < bytes; i++) kiln->access((u64)p + i, 1, use, place);
}
extern "C" KILN_CALL void __tsan_read_range(void* p, u64 n) { if (!KILN_OWN(p)) kiln_access_bytes(p, n, KILN_READ, KILN_HERE); }
extern "C" KILN_CALL void __tsan_write_range(void* p, u64 n) { if (!KILN_OWN(p)) kiln_access_bytes(p, n, KILN_WRITE, KILN_HERE); }
extern "C" KILN_CALL void* __tsan_memset(void* p, int v, u64 n) {
    if (!KILN_OWN(p)) kiln_access_bytes(p, n, KILN_WRITE, KILN_HERE);
    return __builtin_memset(p, v, n);
}
extern "C" KILN_CALL void* __tsan_memcpy(void* to, const void* from, u64 n) {
    if (!KILN_OWN(from)) kiln_access_bytes((void*)from, n, KILN_READ, KILN_HERE);
    if (!KILN_OWN(to)) kiln_access_bytes(to, n, KILN_WRITE, KILN_HERE);
    return __builtin_memcpy(to, from, n);
}
extern "C" KILN_CALL void __tsan_func_entry(void*) {}
extern "C" KILN_CALL void __tsan_func_exit(void*) {}
extern "C" KILN_CALL void __tsan_init() {}

// A loop without accesses must end too: the compiler announces every basic block (`-fsanitize-coverage=trace-pc`).
#ifdef KILN_FUEL
static __thread u32 kiln_fuel;
extern "C" KILN_CALL void __sanitizer_cov_trace_pc() {
    if ((++kiln_fuel & 0xffff) == 0) kiln->spin(KILN_HERE);
}
#endif

// Several bytes at once, with one announcement: alignment and order are those of the whole access.
template <int W> struct kiln_bytes { alignas(W) u8 b[W]; };
template <int W> static KILN_CALL kiln_bytes<W> kiln_load(const void* p) {
    if (!KILN_OWN(p)) kiln->access((u64)p, W, KILN_READ, KILN_HERE);
    kiln_bytes<W> v;
    __builtin_memcpy(&v, p, W);
    return v;
}
template <int W> static KILN_CALL void kiln_store(void* p, kiln_bytes<W> v) {
    if (!KILN_OWN(p)) kiln->access((u64)p, W, KILN_WRITE, KILN_HERE);
    __builtin_memcpy(p, &v, W);
}

// Numbers the machine computes, so that they are the tile VM's to the bit.
static KILN_CALL float kiln_math(u32 function, float x) { return kiln->math(function, x); }
static KILN_CALL float kiln_math2(u32 function, float x, float y) { return kiln->math2(function, x, y); }
static KILN_CALL u32 kiln_encode(u32 format, float x) { return kiln->encode(format, x); }
static KILN_CALL float kiln_decode(u32 format, u32 bits) { return kiln->decode(format, bits); }

// The entry: arguments come as 64-bit words and take the types the kernel declares; of larger ones the address comes.
template <class T, bool LARGE = (sizeof(T) > 8)> struct kiln_word {
    static T get(u64 w) { T v; __builtin_memcpy(&v, &w, sizeof(T)); return v; }
};
template <class T> struct kiln_word<T, true> {
    static T get(u64 w) { T v; __builtin_memcpy(&v, (const void*)w, sizeof(T)); return v; }
};
template <int... I> struct kiln_seq {};
template <int N, int... I> struct kiln_make_seq : kiln_make_seq<N - 1, N - 1, I...> {};
template <int... I> struct kiln_make_seq<0, I...> { typedef kiln_seq<I...> type; };
template <class... A, int... I>
__attribute__((KILN_PLAIN)) static void kiln_call(void (*f)(A...), const u64* words, kiln_seq<I...>) {
    f(kiln_word<A>::get(words[I])...);
}
template <class... A> __attribute__((KILN_PLAIN)) static void kiln_call(void (*f)(A...), const u64* words) {
    kiln_call(f, words, typename kiln_make_seq<sizeof...(A)>::type());
}
template <class... A> static constexpr u32 kiln_arity(void (*)(A...)) { return sizeof...(A); }
