// e8m0: the exponent of a power of two; 255 is NaN, 0 is 2^-127.
DEV e8m0 f32_to_e8m0(float x) { return (e8m0)(__float_as_uint(x) >> 23); }
DEV float e8m0_to_f32(e8m0 x) {
    return __uint_as_float(x == 0 ? 0x00400000u : x == 255 ? 0x7fffffffu : (u32)x << 23);
}
