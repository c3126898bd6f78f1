// Several consecutive elements at once, in pieces of W bytes. The address is a multiple of W.
template <int W> struct Piece;
template <> struct Piece<2> { typedef u16 type; };
template <> struct Piece<4> { typedef u32 type; };
template <> struct Piece<8> { typedef uint2 type; };
template <> struct Piece<16> { typedef uint4 type; };

// Any memory.
template <int W, int N, typename T> DEV void ld(T (&r)[N], const T* p) {
    typedef typename Piece<W>::type P;
    #pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / W); i++) reinterpret_cast<P*>(r)[i] = reinterpret_cast<const P*>(p)[i];
}
template <int W, int N, typename T> DEV void st(T* p, const T (&r)[N]) {
    typedef typename Piece<W>::type P;
    #pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / W); i++) reinterpret_cast<P*>(p)[i] = reinterpret_cast<const P*>(r)[i];
}
