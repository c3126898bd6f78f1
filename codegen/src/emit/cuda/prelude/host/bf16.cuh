// bf16: nearest even; NaN becomes 0x7fff.
DEV float bf16_to_f32(bf16 x) { return __uint_as_float((u32)x << 16); }
DEV float widen(bf16 x) { return bf16_to_f32(x); }
DEV bf16 f32_to_bf16(float x) { return x != x ? 0x7fff : (bf16)kiln_encode(1, x); }
template <int N> DEV void f32_to_bf16(bf16 (&r)[N], const float (&x)[N]) {
    for (int i = 0; i < N; i++) r[i] = f32_to_bf16(x[i]);
}
