// fp8 in integer arithmetic, for hardware without conversions: the same bits as `fp8.cuh`.
// M mantissa bits, smallest exponent E (unbiased), largest finite code MAX.
template <int M, int E, int MAX> DEV u8 f32_to_small(float x) {
    const u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80, mag = bits & 0x7fffffff;
    if (mag > 0x7f800000) return 0x7f;
    int e = (int)(mag >> 23) - 127;
    if (e < E) e = E;
    // Adding 1.5 * 2^(e + 23 - M) leaves the value rounded to units of 2^(e - M) in the low mantissa bits.
    const float magic = __uint_as_float((u32)(e - M + 23 + 127) << 23 | 0x400000u);
    if (mag >= 0x47800000) return (u8)(sign | MAX);
    const u32 q = __float_as_uint(__uint_as_float(mag) + magic) - __float_as_uint(magic);
    const u32 code = ((u32)(e - E) << M) + q;
    return (u8)(sign | (code < MAX ? code : MAX));
}
template <int M, int E> DEV float small_to_f32(u8 x) {
    const u32 sign = (u32)(x & 0x80) << 24, code = x & 0x7f, exponent = code >> M, mantissa = code & ((1 << M) - 1);
    // A subnormal is its mantissa times the smallest unit.
    const float sub = (float)(int)mantissa * __uint_as_float((u32)(E - M + 127) << 23);
    const u32 normal = (exponent + (u32)(E - 1 + 127)) << 23 | mantissa << (23 - M);
    return __uint_as_float(sign | (exponent == 0 ? __float_as_uint(sub) : normal));
}
DEV e4m3 f32_to_e4m3(float x) { return f32_to_small<3, -6, 0x7e>(x); }
DEV e5m2 f32_to_e5m2(float x) { return f32_to_small<2, -14, 0x7b>(x); }
DEV float e4m3_to_f32(e4m3 x) { return (x & 0x7f) == 0x7f ? __uint_as_float(0x7fffffff) : small_to_f32<3, -6>(x); }
DEV float e5m2_to_f32(e5m2 x) {
    if ((x & 0x7f) > 0x7c) return __uint_as_float(0x7fffffff);
    if ((x & 0x7f) == 0x7c) return __uint_as_float((u32)(x & 0x80) << 24 | 0x7f800000);
    return small_to_f32<2, -14>(x);
}
template <int N> DEV void f32_to_e4m3(e4m3 (&r)[N], const float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i < N; i++) r[i] = f32_to_e4m3(x[i]);
}
template <int N> DEV void f32_to_e5m2(e5m2 (&r)[N], const float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i < N; i++) r[i] = f32_to_e5m2(x[i]);
}
