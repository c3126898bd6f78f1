// f16: nearest even, overflow gives infinity; NaN becomes 0x7fff.
DEV float f16_to_f32(f16 x) { return kiln_decode(0, x); }
DEV f16 f32_to_f16(float x) { return x != x ? 0x7fff : (f16)kiln_encode(0, x); }
template <int N> DEV void f32_to_f16(f16 (&r)[N], const float (&x)[N]) {
    for (int i = 0; i < N; i++) r[i] = f32_to_f16(x[i]);
}
