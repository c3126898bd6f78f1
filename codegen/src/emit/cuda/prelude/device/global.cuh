// Global memory that no thread writes during the kernel: loads through the read-only path. With a condition the load is
// predicated instead of branched around, so that loads of several steps stay in flight together; the rest reads zero.
DEV void ld_global_v1h(u16& a, const void* p) { asm("ld.global.nc.u16 %0, [%1];" : "=h"(a) : "l"(p)); }
DEV void ld_global_v1(u32& a, const void* p) { asm("ld.global.nc.u32 %0, [%1];" : "=r"(a) : "l"(p)); }
DEV void ld_global_v2(uint2& a, const void* p) {
    asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(a.x), "=r"(a.y) : "l"(p));
}
DEV void ld_global_v4(uint4& a, const void* p) {
    asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w) : "l"(p));
}
DEV void ld_global_v1h_if(u16& a, const void* p, bool ok) {
    asm("{\n .reg .pred q;\n setp.ne.b32 q, %2, 0;\n mov.u16 %0, 0;\n @q ld.global.nc.u16 %0, [%1];\n}"
        : "=h"(a) : "l"(p), "r"((int)ok));
}
DEV void ld_global_v1_if(u32& a, const void* p, bool ok) {
    asm("{\n .reg .pred q;\n setp.ne.b32 q, %2, 0;\n mov.u32 %0, 0;\n @q ld.global.nc.u32 %0, [%1];\n}"
        : "=r"(a) : "l"(p), "r"((int)ok));
}
DEV void ld_global_v2_if(uint2& a, const void* p, bool ok) {
    asm("{\n .reg .pred q;\n setp.ne.b32 q, %3, 0;\n mov.u32 %0, 0;\n mov.u32 %1, 0;\n"
        " @q ld.global.nc.v2.u32 {%0, %1}, [%2];\n}" : "=r"(a.x), "=r"(a.y) : "l"(p), "r"((int)ok));
}
DEV void ld_global_v4_if(uint4& a, const void* p, bool ok) {
    asm("{\n .reg .pred q;\n setp.ne.b32 q, %5, 0;\n mov.u32 %0, 0;\n mov.u32 %1, 0;\n mov.u32 %2, 0;\n mov.u32 %3, 0;\n"
        " @q ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w) : "l"(p), "r"((int)ok));
}
template <int W, int N, typename T> DEV void ld_global(T (&r)[N], const T* p) {
    #pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / W); i++) {
        const u8* at = reinterpret_cast<const u8*>(p) + i * W;
        if constexpr (W == 16) ld_global_v4(reinterpret_cast<uint4*>(r)[i], at);
        else if constexpr (W == 8) ld_global_v2(reinterpret_cast<uint2*>(r)[i], at);
        else if constexpr (W == 4) ld_global_v1(reinterpret_cast<u32*>(r)[i], at);
        else ld_global_v1h(reinterpret_cast<u16*>(r)[i], at);
    }
}
template <int W, int N, typename T> DEV void ld_global_if(T (&r)[N], const T* p, bool ok) {
    #pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / W); i++) {
        const u8* at = reinterpret_cast<const u8*>(p) + i * W;
        if constexpr (W == 16) ld_global_v4_if(reinterpret_cast<uint4*>(r)[i], at, ok);
        else if constexpr (W == 8) ld_global_v2_if(reinterpret_cast<uint2*>(r)[i], at, ok);
        else if constexpr (W == 4) ld_global_v1_if(reinterpret_cast<u32*>(r)[i], at, ok);
        else ld_global_v1h_if(reinterpret_cast<u16*>(r)[i], at, ok);
    }
}
