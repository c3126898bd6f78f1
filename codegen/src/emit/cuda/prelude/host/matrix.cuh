// Matrices: fragments and products are the machine's own. Bytes bring k in another order than 16-bit values, and the
// machine adds in the order it is given, so fragments are brought into that of k first.
static KILN_CALL kiln_words kiln_by_k(u32 lower, u32 upper, u32 lower2, u32 upper2) {
    const int lane = threadIdx.x % 32, from = lane / 4 * 4 + lane % 4 / 2, odd = lane % 2;
    kiln_words r;
    const u32 in[4] = {lower, lower2, upper, upper2};
    for (int i = 0; i < 4; i++) {
        const u32 a = __shfl_sync(0xffffffffu, in[i % 2], from + i / 2 * 2);
        const u32 b = __shfl_sync(0xffffffffu, in[i % 2 + 2], from + i / 2 * 2);
        r.w[i] = odd ? b : a;
    }
    return r;
}
__forceinline__ void mma_f16_bytes_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const kiln_words left = kiln_by_k(a[0], a[2], a[1], a[3]), right = kiln_by_k(b0, b1, 0, 0);
    const u32 words[4] = {left.w[0], left.w[1], left.w[2], left.w[3]};
    mma_f16_16x8x16(d, words, right.w[0], right.w[2]);
}
