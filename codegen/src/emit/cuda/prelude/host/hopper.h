// Host prelude, part 3: what texts for compute capability 9.0a call. Each function asks the machine; numbers of the questions
// are those of `runtime::device::sim::hopper`.
typedef u32 smem_ptr;
struct alignas(64) TensorMap { u64 words[16]; };
// A tensor map is no word: the argument is where the runner keeps it.
template <> struct kiln_word<TensorMap> {
    __attribute__((KILN_PLAIN)) static TensorMap get(u64 w) { return *(const TensorMap*)w; }
};

template <class... A> __attribute__((KILN_PLAIN)) static inline u64 kiln_ask(u32 question, u32 place, A... a) {
    const u64 words[sizeof...(A) + 1] = {(u64)a...};
    return kiln->ask(question, words, sizeof...(A), place);
}
#define KILN_PAIR(a, b) ((u64)(a) | (u64)(b) << 32)

// --- addresses of shared memory ---
static KILN_CALL smem_ptr smem_address(const void* p) { return (u32)kiln_ask(0, KILN_HERE, (u64)p); }
static KILN_CALL smem_ptr cluster_address(smem_ptr p, u32 rank) { return (u32)kiln_ask(1, KILN_HERE, p, rank); }
static KILN_CALL float smem_load(smem_ptr p) { float4 v; kiln_ask(2, KILN_HERE, p, 4, (u64)&v); return v.x; }
static KILN_CALL float4 smem_load4(smem_ptr p) { float4 v; kiln_ask(2, KILN_HERE, p, 16, (u64)&v); return v; }
static KILN_CALL void smem_store2(smem_ptr p, float x, float y) {
    kiln_ask(3, KILN_HERE, p, KILN_PAIR(__float_as_uint(x), __float_as_uint(y)));
}
static KILN_CALL void smem_store4(smem_ptr p, float x, float y, float z, float w) {
    smem_store2(p, x, y);
    smem_store2(p + 8, z, w);
}

// --- a warp, some warps, a cluster ---
static KILN_CALL u32 lane_index() { return kiln_lane->thread.x % 32; }
static KILN_CALL u32 warp_uniform(u32 x) { return kiln_shuffle(1, 0xffffffffu, x, 0, 32, KILN_HERE); }
static KILN_CALL bool elect_one() { return kiln_ask(4, KILN_HERE) != 0; }
static KILN_CALL void named_barrier_sync(u32 id, u32 threads) { kiln->barrier(id, threads, 0, 0, KILN_HERE); }
static KILN_CALL void named_barrier_arrive(u32 id, u32 threads) { kiln_ask(5, KILN_HERE, id, threads); }
static KILN_CALL u32 cluster_rank() { return kiln_lane->rank; }
static KILN_CALL void cluster_arrive() { kiln_ask(6, KILN_HERE, 1); }
static KILN_CALL void cluster_arrive_relaxed() { kiln_ask(6, KILN_HERE, 0); }
static KILN_CALL void cluster_wait() { kiln_ask(7, KILN_HERE); }
static KILN_CALL void cluster_send4(smem_ptr to, smem_ptr bar, float4 v) {
    kiln_ask(8, KILN_HERE, to, bar, KILN_PAIR(__float_as_uint(v.x), __float_as_uint(v.y)),
        KILN_PAIR(__float_as_uint(v.z), __float_as_uint(v.w)));
}

// --- mbarriers and the async proxy ---
static KILN_CALL void mbar_init(smem_ptr bar, u32 arrivals) { kiln_ask(9, KILN_HERE, bar, arrivals); }
static KILN_CALL void mbar_init_fence() { kiln_ask(10, KILN_HERE); }
static KILN_CALL void mbar_arrive(smem_ptr bar) { kiln_ask(11, KILN_HERE, bar, 0); }
static KILN_CALL void mbar_arrive_expect_tx(smem_ptr bar, u32 bytes) { kiln_ask(11, KILN_HERE, bar, bytes); }
static KILN_CALL void mbar_arrive_cluster(smem_ptr bar, u32 rank) {
    kiln_ask(11, KILN_HERE, kiln_ask(1, KILN_HERE, bar, rank), 0);
}
static KILN_CALL void mbar_expect_tx(smem_ptr bar, u32 bytes) { kiln_ask(12, KILN_HERE, bar, bytes); }
static KILN_CALL void mbar_wait(smem_ptr bar, u32 parity) { kiln_ask(13, KILN_HERE, bar, parity); }
static KILN_CALL void async_proxy_fence() { kiln_ask(14, KILN_HERE); }

// --- bulk copies; no rank means the block itself ---
enum : u32 { KILN_OWN_BLOCK = 0xffffffffu };
enum : u64 { KILN_MAP = 0x70616d206e6c696bull };
__attribute__((KILN_PLAIN)) static inline u64 kiln_map(const TensorMap* map) {
    return map->words[0] == KILN_MAP ? map->words[1] : ~0ull;
}
#define KILN_COORDINATE(x) ((u64)(u32)(x))
#define KILN_LOAD(ranks, ...) kiln_ask(15, KILN_HERE, dst, kiln_map(map), full, (u32)(ranks), __VA_ARGS__)
#define KILN_2 KILN_COORDINATE(x), KILN_COORDINATE(y)
#define KILN_3 KILN_2, KILN_COORDINATE(z)
#define KILN_4 KILN_3, KILN_COORDINATE(w)
#define KILN_TO smem_ptr dst, const TensorMap* map, smem_ptr full
static KILN_CALL void tma_prefetch_map(const TensorMap*) {}
static KILN_CALL u64 l2_evict_first() { return 0; }
static KILN_CALL u64 l2_evict_last() { return 0; }
static KILN_CALL void tma_load_2d(KILN_TO, int x, int y) { KILN_LOAD(KILN_OWN_BLOCK, KILN_2); }
static KILN_CALL void tma_load_3d(KILN_TO, int x, int y, int z) { KILN_LOAD(KILN_OWN_BLOCK, KILN_3); }
static KILN_CALL void tma_load_4d(KILN_TO, int x, int y, int z, int w) { KILN_LOAD(KILN_OWN_BLOCK, KILN_4); }
static KILN_CALL void tma_load_2d_hint(KILN_TO, int x, int y, u64) { KILN_LOAD(KILN_OWN_BLOCK, KILN_2); }
static KILN_CALL void tma_load_3d_hint(KILN_TO, int x, int y, int z, u64) { KILN_LOAD(KILN_OWN_BLOCK, KILN_3); }
static KILN_CALL void tma_load_2d_multicast(KILN_TO, int x, int y, u16 ranks) { KILN_LOAD(ranks, KILN_2); }
static KILN_CALL void tma_load_3d_multicast(KILN_TO, int x, int y, int z, u16 ranks) { KILN_LOAD(ranks, KILN_3); }
static KILN_CALL void tma_load_4d_multicast(KILN_TO, int x, int y, int z, int w, u16 ranks) { KILN_LOAD(ranks, KILN_4); }
static KILN_CALL void tma_store_2d(const TensorMap* map, smem_ptr src, int x, int y) {
    kiln_ask(16, KILN_HERE, kiln_map(map), src, KILN_2);
}
static KILN_CALL void tma_store_3d(const TensorMap* map, smem_ptr src, int x, int y, int z) {
    kiln_ask(16, KILN_HERE, kiln_map(map), src, KILN_3);
}
static KILN_CALL void tma_store_commit() { kiln_ask(17, KILN_HERE); }
template <int N> static KILN_CALL void tma_store_wait_read() { kiln_ask(18, KILN_HERE, N, 1); }
template <int N> static KILN_CALL void tma_store_wait() { kiln_ask(18, KILN_HERE, N, 0); }

// --- matrices ---
static KILN_CALL u32 pack_bf16(float lo, float hi) {
    return (lo != lo ? 0x7fffu : kiln_encode(1, lo)) | (hi != hi ? 0x7fffu : kiln_encode(1, hi)) << 16;
}
static KILN_CALL void stmatrix_x2(smem_ptr row, u32 a, u32 b) { kiln_ask(19, KILN_HERE, 2, row, a, b); }
static KILN_CALL void stmatrix_x4(smem_ptr row, u32 a, u32 b, u32 c, u32 d) { kiln_ask(19, KILN_HERE, 4, row, a, b, c, d); }
static KILN_CALL void wgmma_begin() { kiln_ask(20, KILN_HERE); }
static KILN_CALL void wgmma_commit() { kiln_ask(21, KILN_HERE); }
template <int N> static KILN_CALL void wgmma_wait() { kiln_ask(22, KILN_HERE, N); }
template <int N> static KILN_CALL void wgmma_pin(float (&d)[N]) { kiln_ask(23, KILN_HERE, (u64)&d[0]); }
static KILN_CALL u64 wgmma_tile(smem_ptr tile) {
    return (u64)1 << 62 | (u64)(1024 >> 4) << 32 | (u64)1 << 16 | (u64)((tile & 0x3ffff) >> 4);
}
static KILN_CALL u64 wgmma_tile_across(smem_ptr tile, u32 box_bytes) {
    return (u64)1 << 62 | (u64)(1024 >> 4) << 32 | (u64)(box_bytes >> 4) << 16 | (u64)((tile & 0x3ffff) >> 4);
}
// What the functions of single shapes become.
static KILN_CALL void kiln_wgmma(float* d, u32 count, u32 mode, u64 a0, u64 a1, u64 b, int add) {
    kiln->wgmma(d, count, mode, a0, a1, b, add, KILN_HERE);
}

// --- registers, launches ---
template <int N> static KILN_CALL void registers_grow() { kiln_ask(24, KILN_HERE, N, 1); }
template <int N> static KILN_CALL void registers_shrink() { kiln_ask(24, KILN_HERE, N, 0); }
static KILN_CALL void grid_wait_previous() {}
static KILN_CALL void grid_allow_next() {}
static KILN_CALL void wait_for_earlier_kernels() {}
static KILN_CALL void let_the_next_kernel_start() {}
static KILN_CALL float global_load(const float* p) {
    kiln->access((u64)p, 4, KILN_READ, KILN_HERE);
    return *p;
}
