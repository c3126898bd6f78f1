// Four bytes to four f16, exactly: bytes 0 and 1, then 2 and 3. Codes of e2m1 lie one in a byte.
DEV u32 kiln_two(float a, float b) {
    return (a != a ? 0x7fffu : kiln_encode(0, a)) | (b != b ? 0x7fffu : kiln_encode(0, b)) << 16;
}
struct E4m3 {
    static DEV void widen(u32 (&r)[2], u32 x) {
        r[0] = kiln_two(kiln_decode(2, x & 0xff), kiln_decode(2, x >> 8 & 0xff));
        r[1] = kiln_two(kiln_decode(2, x >> 16 & 0xff), kiln_decode(2, x >> 24));
    }
};
struct E5m2 {
    static DEV void widen(u32 (&r)[2], u32 x) {
        r[0] = (x & 0xff) << 8 | (x & 0xff00) << 16;
        r[1] = (x & 0xff0000) >> 8 | (x & 0xff000000);
    }
};
struct E2m1 {
    static DEV float one(u32 x) {
        const u32 m = x & 7;
        const float v = m < 2 ? 0.5f * m : __uint_as_float(((m >> 1) + 126) << 23 | (m & 1) << 22);
        return x & 8 ? -v : v;
    }
    static DEV void widen(u32 (&r)[2], u32 x) {
        r[0] = kiln_two(one(x), one(x >> 8));
        r[1] = kiln_two(one(x >> 16), one(x >> 24));
    }
};
