// Fragments of bytes to f16: two steps of k of a left operand, or of two neighbouring right operands.
template <typename F> DEV void widen_left(u32 (&r)[2][4], const u32 (&x)[4]) {
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 upper[2], lower[2];
        F::widen(upper, x[2 * h]);
        F::widen(lower, x[2 * h + 1]);
        r[h][0] = upper[0]; r[h][1] = lower[0]; r[h][2] = upper[1]; r[h][3] = lower[1];
    }
}
template <typename F> DEV void widen_right(u32 (&r)[2][2][2], const u32 (&x)[4]) {
    #pragma unroll
    for (int q = 0; q < 4; q++) F::widen(r[q / 2][q % 2], x[q]);
}
template <typename F> DEV u16 widen_one(u8 x) { u32 r[2]; F::widen(r, x); return (u16)r[0]; }
