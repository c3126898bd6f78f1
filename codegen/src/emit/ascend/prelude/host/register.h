// Host prelude for AscendC, part 5: vector functions over registers, which 3510 has.

#if __NPU_ARCH__ == 3510
namespace AscendC {

enum class SpecialPurposeReg { AR };

namespace Reg {

// No initial value.
template <class T> struct RegTensor : kiln_register_t {
    RegTensor()
    {
        __builtin_memset(bytes, 0xff, sizeof(bytes));
        __builtin_memset(defined, 0, sizeof(defined));
    }
};
struct MaskReg : kiln_mask_t {
    MaskReg()
    {
        __builtin_memset(bits, 0xff, sizeof(bits));
        set = 0;
    }
};
struct UnalignRegForStore {
    uint32_t unused = 0;
};

enum class MaskPattern { ALL, VL1, VL2, VL4, VL8, VL16, VL32, VL64, VL128, H, Q, ALLF };
enum class LoadDist { DIST_NORM, DIST_BRC_B32, DIST_UNPACK_B16, DIST_BRC_B16, DIST_UNPACK4_B8, DIST_BRC_B8 };
enum class StoreDist {
    DIST_NORM, DIST_PACK_B32, DIST_PACK4_B32, DIST_FIRST_ELEMENT_B8, DIST_FIRST_ELEMENT_B32, DIST_FIRST_ELEMENT_B16
};
enum class DataCopyMode { DATA_BLOCK_COPY };
enum class PostLiteral { POST_MODE_UPDATE };
enum class ReduceType { SUM, MAX, MIN };
enum class RegLayout { ZERO, ONE, TWO, THREE };
enum class SatMode { NO_SAT, SAT, UNKNOWN };
enum class MaskMergeMode { ZEROING };
enum class HighLowPart { LOWEST, HIGHEST };
enum class GatherMaskMode { STORE_REG };
enum class HistogramsBinType { BIN0, BIN1 };
enum class HistogramsType { FREQUENCY };
enum class MemType { VEC_STORE, VEC_LOAD };
struct CastTrait {
    RegLayout layout;
    SatMode sat;
    MaskMergeMode merge;
    RoundMode round;
};

inline void kiln_reg(
    uint32_t code, uint32_t type, kiln_register_t* d, const kiln_register_t* a, const kiln_register_t* b,
    const kiln_mask_t* mask, uint64_t word, uint64_t more, uint32_t line)
{
    const kiln_operands_t x = {a, b, mask, word, more};
    kiln->reg(code, type, d, &x, line);
}

// ---- masks: one bit a byte of the register, set at the first byte of each selected lane ------------------
template <class T> inline MaskReg kiln_first_lanes(uint32_t lanes)
{
    MaskReg m;
    __builtin_memset(m.bits, 0, sizeof(m.bits));
    for (uint32_t i = 0; i < lanes && i * sizeof(T) < 256; i++) {
        m.bits[i * sizeof(T) / 8] = (uint8_t)(m.bits[i * sizeof(T) / 8] | 1u << (i * sizeof(T) % 8));
    }
    m.set = 1;
    return m;
}
template <class T, MaskPattern P = MaskPattern::ALL> inline MaskReg CreateMask()
{
    constexpr uint32_t lanes = 256 / sizeof(T);
    constexpr uint32_t some[] = {lanes, 1, 2, 4, 8, 16, 32, 64, 128, lanes / 2, lanes / 4, 0};
    return kiln_first_lanes<T>(some[(int)P]);
}
template <class T> inline MaskReg UpdateMask(uint32_t& left)
{
    constexpr uint32_t lanes = 256 / sizeof(T);
    const MaskReg m = kiln_first_lanes<T>(left);
    left = left > lanes ? left - lanes : 0;
    return m;
}

// ---- loads and stores ----------------------------------------------------------------------------------
template <class T, LoadDist D = LoadDist::DIST_NORM> inline void LoadAlign(RegTensor<T>& r, const T* p, KILN_LINE)
{
    static_assert(D != LoadDist::DIST_BRC_B32 || sizeof(T) == 4, "elements of 32 bits");
    static_assert((D != LoadDist::DIST_UNPACK_B16 && D != LoadDist::DIST_BRC_B16) || sizeof(T) == 2, "elements of 16 bits");
    static_assert((D != LoadDist::DIST_UNPACK4_B8 && D != LoadDist::DIST_BRC_B8) || sizeof(T) == 1, "elements of 8 bits");
    kiln_reg(80 + (uint32_t)D, kiln_type<T>::value, &r, nullptr, nullptr, nullptr, (uint64_t)p, 0, line);
}
template <class T, StoreDist D = StoreDist::DIST_NORM>
inline void StoreAlign(T* p, const RegTensor<T>& r, const MaskReg& mask, KILN_LINE)
{
    static_assert((D != StoreDist::DIST_PACK_B32 && D != StoreDist::DIST_FIRST_ELEMENT_B16) || sizeof(T) == 2, "elements of 16 bits");
    static_assert((D != StoreDist::DIST_PACK4_B32 && D != StoreDist::DIST_FIRST_ELEMENT_B8) || sizeof(T) == 1, "elements of 8 bits");
    static_assert(D != StoreDist::DIST_FIRST_ELEMENT_B32 || sizeof(T) == 4, "elements of 32 bits");
    kiln_reg(90 + (uint32_t)D, kiln_type<T>::value, nullptr, &r, nullptr, &mask, (uint64_t)p, 0, line);
}
template <class T, DataCopyMode M>
inline void StoreAlign(T* p, const RegTensor<T>& r, uint32_t blockStride, const MaskReg& mask, KILN_LINE)
{
    kiln_reg(96, kiln_type<T>::value, nullptr, &r, nullptr, &mask, (uint64_t)p, blockStride, line);
}
// Elements of 32 bits at distances, in elements, that a register holds.
template <class T>
inline void Gather(RegTensor<T>& d, const T* p, const RegTensor<uint32_t>& index, const MaskReg& mask, KILN_LINE)
{
    static_assert(sizeof(T) == 4, "elements of 32 bits");
    kiln_reg(86, kiln_type<T>::value, &d, nullptr, &index, &mask, (uint64_t)p, 0, line);
}
template <class T>
inline void Scatter(T* p, const RegTensor<T>& a, const RegTensor<uint32_t>& index, const MaskReg& mask, KILN_LINE)
{
    static_assert(sizeof(T) == 4, "elements of 32 bits");
    kiln_reg(99, kiln_type<T>::value, nullptr, &a, &index, &mask, (uint64_t)p, 0, line);
}
template <class T, PostLiteral P>
inline void StoreUnAlign(T* p, const RegTensor<T>& r, UnalignRegForStore&, KILN_LINE)
{
    kiln_reg(97, kiln_type<T>::value, nullptr, &r, nullptr, nullptr, (uint64_t)p, 0, line);
}
template <class T> inline void StoreUnAlignPost(T* p, UnalignRegForStore&, KILN_LINE)
{
    kiln_reg(98, kiln_type<T>::value, nullptr, nullptr, nullptr, nullptr, (uint64_t)p, 0, line);
}
template <SpecialPurposeReg R> inline void ClearSpr(KILN_LINE)
{
    kiln_reg(61, KILN_U32, nullptr, nullptr, nullptr, nullptr, 0, 0, line);
}
template <MemType BEFORE, MemType AFTER> inline void LocalMemBar(KILN_LINE)
{
    static_assert(BEFORE == MemType::VEC_STORE && AFTER == MemType::VEC_LOAD, "between stores and loads");
    kiln_reg(62, KILN_U32, nullptr, nullptr, nullptr, nullptr, 0, 0, line);
}

// ---- arithmetic: lanes outside the mask become zero -----------------------------------------------------
#define KILN_BINARY(NAME, OP)                                                                                     \
    template <class T>                                                                                            \
    inline void NAME(                                                                                             \
        RegTensor<T>& d, const RegTensor<T>& a, const RegTensor<T>& b, const MaskReg& mask, KILN_LINE)            \
    {                                                                                                             \
        kiln_reg(OP, kiln_type<T>::value, &d, &a, &b, &mask, 0, 0, line);                                         \
    }
KILN_BINARY(Add, KILN_ADD)
KILN_BINARY(Sub, KILN_SUB)
KILN_BINARY(Mul, KILN_MUL)
KILN_BINARY(Div, KILN_DIV)
KILN_BINARY(Max, KILN_MAX)
KILN_BINARY(Min, KILN_MIN)
KILN_BINARY(And, KILN_AND)
KILN_BINARY(Or, KILN_OR)
KILN_BINARY(Xor, KILN_XOR)
// d = fma(a, b, d)
KILN_BINARY(MulAddDst, 48)
#undef KILN_BINARY

#define KILN_SCALAR(NAME, OP)                                                                                     \
    template <class T>                                                                                            \
    inline void NAME(                                                                                             \
        RegTensor<T>& d, const RegTensor<T>& a, typename kiln_same<T>::type s, const MaskReg& mask, KILN_LINE)    \
    {                                                                                                             \
        kiln_reg(16 + OP, kiln_type<T>::value, &d, &a, nullptr, &mask, kiln_bits(s), 0, line);                    \
    }
KILN_SCALAR(Adds, KILN_ADD)
KILN_SCALAR(Muls, KILN_MUL)
KILN_SCALAR(Maxs, KILN_MAX)
KILN_SCALAR(Mins, KILN_MIN)
#undef KILN_SCALAR
template <class T>
inline void ShiftLefts(RegTensor<T>& d, const RegTensor<T>& a, int16_t by, const MaskReg& mask, KILN_LINE)
{
    kiln_reg(16 + KILN_SHL, kiln_type<T>::value, &d, &a, nullptr, &mask, (uint64_t)by, 0, line);
}
template <class T>
inline void ShiftRights(RegTensor<T>& d, const RegTensor<T>& a, int16_t by, const MaskReg& mask, KILN_LINE)
{
    kiln_reg(16 + KILN_SHR, kiln_type<T>::value, &d, &a, nullptr, &mask, (uint64_t)by, 0, line);
}

template <class T, class S>
inline void ShiftLeft(RegTensor<T>& d, const RegTensor<T>& a, const RegTensor<S>& by, const MaskReg& mask, KILN_LINE)
{
    static_assert(sizeof(T) == sizeof(S) && S(-1) < S(0), "by signed numbers of the same width");
    kiln_reg(KILN_SHL, kiln_type<T>::value, &d, &a, &by, &mask, 0, 0, line);
}
template <class T, class S>
inline void ShiftRight(RegTensor<T>& d, const RegTensor<T>& a, const RegTensor<S>& by, const MaskReg& mask, KILN_LINE)
{
    static_assert(sizeof(T) == sizeof(S) && S(-1) < S(0), "by signed numbers of the same width");
    kiln_reg(KILN_SHR, kiln_type<T>::value, &d, &a, &by, &mask, 0, 0, line);
}

#define KILN_UNARY(NAME, OP)                                                                                      \
    template <class T> inline void NAME(RegTensor<T>& d, const RegTensor<T>& a, const MaskReg& mask, KILN_LINE)   \
    {                                                                                                             \
        kiln_reg(32 + OP, kiln_type<T>::value, &d, &a, nullptr, &mask, 0, 0, line);                               \
    }
KILN_UNARY(Abs, KILN_ABS)
KILN_UNARY(Sqrt, KILN_SQRT)
KILN_UNARY(Exp, KILN_EXP)
KILN_UNARY(Ln, KILN_LN)
KILN_UNARY(Not, KILN_NOT)
KILN_UNARY(Neg, KILN_NEG)
KILN_UNARY(Relu, KILN_RELU)
#undef KILN_UNARY

template <class T>
inline void Duplicate(RegTensor<T>& d, typename kiln_same<T>::type s, const MaskReg& mask, KILN_LINE)
{
    kiln_reg(49, kiln_type<T>::value, &d, nullptr, nullptr, &mask, kiln_bits(s), 0, line);
}
// Lane 0 to all.
template <class T>
inline void Duplicate(RegTensor<T>& d, const RegTensor<T>& a, const MaskReg& mask, KILN_LINE)
{
    kiln_reg(50, kiln_type<T>::value, &d, &a, nullptr, &mask, 0, 0, line);
}
template <ReduceType R, class T>
inline void Reduce(RegTensor<T>& d, const RegTensor<T>& a, const MaskReg& mask, KILN_LINE)
{
    kiln_reg(51 + (uint32_t)R, kiln_type<T>::value, &d, &a, nullptr, &mask, 0, 0, line);
}

// ---- comparison and choice --------------------------------------------------------------------------------
template <class T, CMPMODE MODE>
inline void Compare(
    MaskReg& d, const RegTensor<T>& a, const RegTensor<T>& b, const MaskReg& mask, KILN_LINE)
{
    const kiln_operands_t x = {&a, &b, &mask, 0, (uint64_t)MODE};
    kiln->compare(70, kiln_type<T>::value, &d, &x, line);
}
template <class T, CMPMODE MODE>
inline void Compares(
    MaskReg& d, const RegTensor<T>& a, typename kiln_same<T>::type s, const MaskReg& mask, KILN_LINE)
{
    const kiln_operands_t x = {&a, nullptr, &mask, kiln_bits(s), (uint64_t)MODE};
    kiln->compare(71, kiln_type<T>::value, &d, &x, line);
}
template <class T>
inline void Select(
    RegTensor<T>& d, const RegTensor<T>& ifSet, const RegTensor<T>& ifClear, const MaskReg& mask, KILN_LINE)
{
    kiln_reg(72, kiln_type<T>::value, &d, &ifSet, &ifClear, &mask, 0, 0, line);
}

// Masks of masks. One that had no value gives one that has none.
#define KILN_MASK(NAME, EXPRESSION)                                                                               \
    inline void NAME(MaskReg& d, const MaskReg& a, const MaskReg& b, const MaskReg& mask)                         \
    {                                                                                                             \
        MaskReg out;                                                                                              \
        for (int i = 0; i < 32; i++) {                                                                            \
            const uint32_t x = a.bits[i], y = b.bits[i], m = mask.bits[i];                                        \
            out.bits[i] = (uint8_t)(EXPRESSION);                                                                  \
        }                                                                                                         \
        out.set = a.set & b.set & mask.set;                                                                       \
        d = out;                                                                                                  \
    }
KILN_MASK(And, x& y& m)
KILN_MASK(Or, (x | y) & m)
KILN_MASK(Xor, (x ^ y) & m)
KILN_MASK(Select, (x & m) | (y & ~m))
#undef KILN_MASK
inline void Not(MaskReg& d, const MaskReg& a, const MaskReg& mask)
{
    MaskReg out;
    for (int i = 0; i < 32; i++) out.bits[i] = (uint8_t)(~a.bits[i] & mask.bits[i]);
    out.set = a.set & mask.set;
    d = out;
}

// ---- conversion and arrangement ---------------------------------------------------------------------------
template <class D, class S, const CastTrait& TRAIT>
inline void Cast(RegTensor<D>& d, const RegTensor<S>& a, const MaskReg& mask, KILN_LINE)
{
    const uint64_t more = kiln_round(TRAIT.round) | (TRAIT.sat == SatMode::SAT ? 256u : 0u) | (uint64_t)TRAIT.layout << 16;
    kiln_reg(64, kiln_type<D>::value, &d, &a, nullptr, &mask, kiln_type<S>::value, more, line);
}
template <class D, class S> inline void Pack(RegTensor<D>& d, const RegTensor<S>& a, KILN_LINE)
{
    static_assert(sizeof(D) == 2 && sizeof(S) == 4, "from 32 to 16 bits");
    kiln_reg(54, kiln_type<D>::value, &d, &a, nullptr, nullptr, 0, 0, line);
}
template <class D, class S, HighLowPart PART> inline void UnPack(RegTensor<D>& d, const RegTensor<S>& a, KILN_LINE)
{
    static_assert(sizeof(D) == 4 && sizeof(S) == 2, "from 16 to 32 bits");
    kiln_reg(55 + (uint32_t)PART, kiln_type<D>::value, &d, &a, nullptr, nullptr, 0, 0, line);
}
template <class T> inline void Arange(RegTensor<T>& d, typename kiln_same<T>::type start, KILN_LINE)
{
    kiln_reg(57, kiln_type<T>::value, &d, nullptr, nullptr, nullptr, kiln_bits(start), 0, line);
}
template <class T, GatherMaskMode M>
inline void Squeeze(RegTensor<T>& d, const RegTensor<T>& a, const MaskReg& mask, KILN_LINE)
{
    kiln_reg(58, kiln_type<T>::value, &d, &a, nullptr, &mask, 0, 0, line);
}
template <class S, class D, HistogramsBinType BIN, HistogramsType KIND>
inline void Histograms(RegTensor<D>& acc, const RegTensor<S>& data, const MaskReg& mask, KILN_LINE)
{
    static_assert(sizeof(S) == 1 && sizeof(D) == 2, "counts of 16 bits of bytes");
    kiln_reg(59 + (uint32_t)BIN, kiln_type<S>::value, &acc, &data, nullptr, &mask, 0, 0, line);
}

} // namespace Reg
namespace MicroAPI = Reg;

} // namespace AscendC

template <class F> inline void kiln_run(const void* f) { (*(const F*)f)(); }
// Arguments are kept until the vector pipe comes to the function.
template <auto fn, class... A> inline void asc_vf_call(A... a)
{
    const auto body = [=] { fn(a...); };
    static_assert(__is_trivially_copyable(decltype(body)), "scalars and addresses");
    kiln->function(&kiln_run<decltype(body)>, &body, sizeof(body), kiln_last_line);
}
#endif
