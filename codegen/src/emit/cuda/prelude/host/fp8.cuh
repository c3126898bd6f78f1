// fp8 as the hardware converts it (compute capability 8.9 and newer): nearest even, saturating, NaN stays NaN.
DEV e4m3 f32_to_e4m3(float x) { return (e4m3)kiln_encode(2, x); }
DEV e5m2 f32_to_e5m2(float x) { return (e5m2)kiln_encode(3, x); }
DEV float e4m3_to_f32(e4m3 x) { return kiln_decode(2, x); }
DEV float e5m2_to_f32(e5m2 x) { return kiln_decode(3, x); }
template <int N> DEV void f32_to_e4m3(e4m3 (&r)[N], const float (&x)[N]) {
    for (int i = 0; i < N; i++) r[i] = f32_to_e4m3(x[i]);
}
template <int N> DEV void f32_to_e5m2(e5m2 (&r)[N], const float (&x)[N]) {
    for (int i = 0; i < N; i++) r[i] = f32_to_e5m2(x[i]);
}
