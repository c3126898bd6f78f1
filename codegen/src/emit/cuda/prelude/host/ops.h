// Host prelude, part 2: one function per instruction, under the names of the device prelude.

template <class T> inline T kiln_shared_get(u32 address, u32 line) {
    T v;
    kiln->shared_load(address, &v, sizeof(T), line);
    return v;
}
template <class T> inline void kiln_shared_put(u32 address, T v, u32 line) { kiln->shared_store(address, &v, sizeof(T), line); }
template <class T> inline T kiln_global_get(const void* p, u32 line) {
    T v;
    kiln->global_load((u64)p, &v, sizeof(T), line);
    return v;
}
template <class T> inline void kiln_global_put(void* p, T v, u32 line) { kiln->global_store((u64)p, &v, sizeof(T), line); }

inline u32 smem_base() { return 0x400; }
inline u32 ld_shared_u32(u32 a, KILN_AT) { return kiln_shared_get<u32>(a, line); }
inline float ld_shared_f32(u32 a, KILN_AT) { return kiln_shared_get<float>(a, line); }
inline void st_shared_u32(u32 a, u32 v, KILN_AT) { kiln_shared_put(a, v, line); }
inline void st_shared_f32(u32 a, float v, KILN_AT) { kiln_shared_put(a, v, line); }
inline float ld_global_f32(const float* p, KILN_AT) { return kiln_global_get<float>(p, line); }
inline u32 ld_global_u32(const u32* p, KILN_AT) { return kiln_global_get<u32>(p, line); }
inline void st_global_f32(float* p, float v, KILN_AT) { kiln_global_put(p, v, line); }
inline void st_global_u32(u32* p, u32 v, KILN_AT) { kiln_global_put(p, v, line); }

inline void __syncthreads(KILN_AT) { kiln->barrier(0, 0, 0, 0, line); }
inline u32 kiln_warp(u32 op, u32 width, u32 mask, u32 x, u32 y, u32 operand, u32* high, u32 line) {
    u32 words[3] = {x, y, operand}, results[4] = {0, 0, 0, 0};
    kiln->warp(op, width, mask, words, 3, results, line);
    if (high) *high = results[1];
    return results[0];
}
inline void __syncwarp(u32 mask = 0xffffffffu, KILN_AT) { kiln_warp(0, 32, mask, 0, 0, 0, 0, line); }
template <class T> inline T kiln_shuffle(u32 op, u32 mask, T v, u32 operand, u32 width, u32 line) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    u32 words[2] = {0, 0};
    __builtin_memcpy(words, &v, sizeof(T));
    words[0] = kiln_warp(op, width, mask, words[0], words[1], operand, &words[1], line);
    __builtin_memcpy(&v, words, sizeof(T));
    return v;
}
template <class T> inline T __shfl_sync(u32 mask, T v, int lane, int width = 32, KILN_AT) { return kiln_shuffle(1, mask, v, lane, width, line); }
template <class T> inline T __shfl_up_sync(u32 mask, T v, u32 by, int width = 32, KILN_AT) { return kiln_shuffle(2, mask, v, by, width, line); }
template <class T> inline T __shfl_down_sync(u32 mask, T v, u32 by, int width = 32, KILN_AT) { return kiln_shuffle(3, mask, v, by, width, line); }
template <class T> inline T __shfl_xor_sync(u32 mask, T v, int bits, int width = 32, KILN_AT) { return kiln_shuffle(4, mask, v, bits, width, line); }

inline void cp_async16(u32 to, const void* from, u32 valid, KILN_AT) { kiln->copy_async(to, (u64)from, 16, valid, line); }
inline void cp_async_commit(KILN_AT) { kiln->copy_commit(line); }
template <int N> inline void cp_async_wait(KILN_AT) { kiln->copy_wait(N, line); }
