// Global memory that no thread writes during the kernel. With a condition, the rest reads zero.
template <int W, int N, typename T> DEV void ld_global(T (&r)[N], const T* p) {
    for (int i = 0; i < int(N * sizeof(T) / W); i++) {
        const kiln_bytes<W> v = kiln_load<W>(reinterpret_cast<const u8*>(p) + i * W);
        __builtin_memcpy(reinterpret_cast<u8*>(r) + i * W, &v, W);
    }
}
template <int W, int N, typename T> DEV void ld_global_if(T (&r)[N], const T* p, bool ok) {
    if (ok) ld_global<W>(r, p);
    else __builtin_memset(r, 0, sizeof(r));
}
