// Four bytes to four f16, exactly: bytes 0 and 1, then 2 and 3. Codes of e2m1 lie one in a byte. For hardware without
// conversions of fp8.
DEV u32 times_f16x2(u32 x, u32 y) { u32 r; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y)); return r; }
struct E4m3 {
    static DEV u32 two(u32 x) {
        // The code as the top of an f16 lacks a factor of 2^8, the difference of the exponents' biases. NaN is all ones.
        const u32 p = (x & 0xff) | (x & 0xff00) << 8, m = p & 0x7f007f;
        const u32 nan = ((m + 0x10001) & 0x800080) >> 7;
        return times_f16x2((p & 0x800080) << 8 | m << 7, 0x5c005c00) | nan * 0x7fff;
    }
    static DEV void widen(u32 (&r)[2], u32 x) { r[0] = two(x); r[1] = two(x >> 16); }
};
struct E5m2 {
    static DEV void widen(u32 (&r)[2], u32 x) {
        r[0] = (x & 0xff) << 8 | (x & 0xff00) << 16;
        r[1] = (x & 0xff0000) >> 8 | (x & 0xff000000);
    }
};
struct E2m1 {
    static DEV u32 two(u32 x) {
        const u32 p = (x & 0xff) | (x & 0xff00) << 8;
        return times_f16x2((p & 0x80008) << 12 | (p & 0x70007) << 9, 0x74007400);
    }
    static DEV void widen(u32 (&r)[2], u32 x) { r[0] = two(x); r[1] = two(x >> 16); }
};
