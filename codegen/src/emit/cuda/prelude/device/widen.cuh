// Four bytes to four f16, exactly: bytes 0 and 1, then 2 and 3. Codes of e2m1 lie one in a byte.
struct E4m3 {
    static DEV void widen(u32 (&r)[2], u32 x) {
        asm("{\n .reg .b16 lo, hi;\n mov.b32 {lo, hi}, %2;\n cvt.rn.f16x2.e4m3x2 %0, lo;\n cvt.rn.f16x2.e4m3x2 %1, hi;\n}"
            : "=r"(r[0]), "=r"(r[1]) : "r"(x));
    }
};
struct E5m2 {
    static DEV void widen(u32 (&r)[2], u32 x) {
        r[0] = (x & 0xff) << 8 | (x & 0xff00) << 16;
        r[1] = (x & 0xff0000) >> 8 | (x & 0xff000000);
    }
};
struct E2m1 {
    static DEV u32 two(u32 x) {
        // The code as the top of an f16 lacks a factor of 2^14, the difference of the exponents' biases.
        const u32 p = (x & 0xff) | (x & 0xff00) << 8, h = (p & 0x80008) << 12 | (p & 0x70007) << 9;
        u32 r; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(h), "r"(0x74007400)); return r;
    }
    static DEV void widen(u32 (&r)[2], u32 x) { r[0] = two(x); r[1] = two(x >> 16); }
};
