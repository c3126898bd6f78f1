// Several consecutive elements at once, in pieces of W bytes. The address is a multiple of W.
template <int W, int N, typename T> DEV void ld(T (&r)[N], const T* p) {
    for (int i = 0; i < int(N * sizeof(T) / W); i++) {
        const kiln_bytes<W> v = kiln_load<W>(reinterpret_cast<const u8*>(p) + i * W);
        __builtin_memcpy(reinterpret_cast<u8*>(r) + i * W, &v, W);
    }
}
template <int W, int N, typename T> DEV void st(T* p, const T (&r)[N]) {
    for (int i = 0; i < int(N * sizeof(T) / W); i++) {
        kiln_bytes<W> v;
        __builtin_memcpy(&v, reinterpret_cast<const u8*>(r) + i * W, W);
        kiln_store<W>(reinterpret_cast<u8*>(p) + i * W, v);
    }
}
