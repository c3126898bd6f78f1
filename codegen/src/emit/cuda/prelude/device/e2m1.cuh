// e2m1: one code in the low bits of a byte. Nearest even, saturating; NaN becomes the largest.
DEV float e2m1_to_f32(u8 x) {
    const u32 m = x & 7, normal = ((m >> 1) + 126) << 23 | (m & 1) << 22;
    return __uint_as_float((u32)(x & 8) << 28 | (m < 2 ? (m == 0 ? 0u : 0x3f000000u) : normal));
}
DEV u8 f32_to_e2m1(float x) {
    const u32 bits = __float_as_uint(x), sign = bits >> 28 & 8;
    const float a = __uint_as_float(bits & 0x7fffffff);
    if (a != a) return 7;
    // Halfway between two codes the even one wins.
    const u32 code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return (u8)(sign | code);
}
