// Host prelude for AscendC, part 4: vector instructions on UB tensors, which 2201 has, and what both chips name.

namespace AscendC {

enum class RoundMode { CAST_NONE, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, UNKNOWN };
constexpr uint32_t kiln_round(RoundMode r) { return r == RoundMode::UNKNOWN ? 0 : (uint32_t)r; }
enum class CMPMODE { LT, GT, EQ, LE, GE, NE };

// Numbers of the machine.
enum kiln_binary_t {
    KILN_ADD, KILN_SUB, KILN_MUL, KILN_DIV, KILN_MAX, KILN_MIN, KILN_AND, KILN_OR, KILN_XOR, KILN_SHL, KILN_SHR
};
enum kiln_unary_t {
    KILN_ABS, KILN_SQRT, KILN_EXP, KILN_LN, KILN_NOT, KILN_NEG, KILN_RELU, KILN_RECIPROCAL, KILN_RSQRT
};

#if __NPU_ARCH__ == 2201

struct BinaryRepeatParams {
    BinaryRepeatParams() = default;
    BinaryRepeatParams(uint8_t dst, uint8_t src0, uint8_t src1, uint8_t dstRep, uint8_t src0Rep, uint8_t src1Rep)
        : dstBlkStride(dst), src0BlkStride(src0), src1BlkStride(src1), dstRepStride(dstRep), src0RepStride(src0Rep),
          src1RepStride(src1Rep)
    {}
    uint8_t dstBlkStride = 1, src0BlkStride = 1, src1BlkStride = 1, dstRepStride = 8, src0RepStride = 8,
            src1RepStride = 8;
};
struct UnaryRepeatParams {
    UnaryRepeatParams() = default;
    UnaryRepeatParams(uint16_t dst, uint16_t src, uint8_t dstRep, uint8_t srcRep)
        : dstBlkStride(dst), srcBlkStride(src), dstRepStride(dstRep), srcRepStride(srcRep)
    {}
    uint16_t dstBlkStride = 1, srcBlkStride = 1;
    uint8_t dstRepStride = 8, srcRepStride = 8;
};
struct BrcbRepeatParams {
    BrcbRepeatParams() = default;
    BrcbRepeatParams(uint16_t dst, uint16_t dstRep) : dstBlkStride(dst), dstRepStride(dstRep) {}
    uint16_t dstBlkStride = 1, dstRepStride = 8;
};
enum class ReduceOrder { ORDER_VALUE_INDEX, ORDER_INDEX_VALUE, ORDER_ONLY_VALUE, ORDER_ONLY_INDEX };

// Operands are tensor, block stride, repeat stride; kinds and shapes as the machine numbers them.
#define KILN_OPERAND(t, blk, rep) (t).place, (t).bytes, blk, rep
#define KILN_COUNT(n) 0, n, 0
#define KILN_REPEAT(mask, repeat) 1, mask, repeat

#define KILN_BINARY(NAME, OP)                                                                                       \
    template <class T>                                                                                              \
    inline void NAME(                                                                                               \
        const LocalTensor<T>& d, const LocalTensor<T>& a, const LocalTensor<T>& b, int32_t n, KILN_LINE)            \
    {                                                                                                               \
        const uint32_t t = kiln_type<T>::value;                                                                     \
        kiln_do(                                                                                                    \
            19, line, 0, OP, t, t, 0, KILN_COUNT(n), 2, KILN_OPERAND(d, 1, 8), KILN_OPERAND(a, 1, 8),               \
            KILN_OPERAND(b, 1, 8));                                                                                 \
    }                                                                                                               \
    template <class T>                                                                                              \
    inline void NAME(                                                                                               \
        const LocalTensor<T>& d, const LocalTensor<T>& a, const LocalTensor<T>& b, uint64_t mask, uint8_t repeat,   \
        const BinaryRepeatParams& p, KILN_LINE)                                                                     \
    {                                                                                                               \
        const uint32_t t = kiln_type<T>::value;                                                                     \
        kiln_do(                                                                                                    \
            19, line, 0, OP, t, t, 0, KILN_REPEAT(mask, repeat), 2,                                                 \
            KILN_OPERAND(d, p.dstBlkStride, p.dstRepStride), KILN_OPERAND(a, p.src0BlkStride, p.src0RepStride),     \
            KILN_OPERAND(b, p.src1BlkStride, p.src1RepStride));                                                     \
    }
KILN_BINARY(Add, KILN_ADD)
KILN_BINARY(Sub, KILN_SUB)
KILN_BINARY(Mul, KILN_MUL)
KILN_BINARY(Div, KILN_DIV)
KILN_BINARY(Max, KILN_MAX)
KILN_BINARY(Min, KILN_MIN)
KILN_BINARY(And, KILN_AND)
KILN_BINARY(Or, KILN_OR)
#undef KILN_BINARY

#define KILN_SCALAR(NAME, OP)                                                                                       \
    template <class T>                                                                                              \
    inline void NAME(                                                                                               \
        const LocalTensor<T>& d, const LocalTensor<T>& a, typename kiln_same<T>::type s, int32_t n, KILN_LINE)      \
    {                                                                                                               \
        const uint32_t t = kiln_type<T>::value;                                                                     \
        kiln_do(                                                                                                    \
            19, line, 1, OP, t, t, kiln_bits(s), KILN_COUNT(n), 1, KILN_OPERAND(d, 1, 8), KILN_OPERAND(a, 1, 8));   \
    }                                                                                                               \
    template <class T>                                                                                              \
    inline void NAME(                                                                                               \
        const LocalTensor<T>& d, const LocalTensor<T>& a, typename kiln_same<T>::type s, uint64_t mask,             \
        uint8_t repeat, const UnaryRepeatParams& p, KILN_LINE)                                                      \
    {                                                                                                               \
        const uint32_t t = kiln_type<T>::value;                                                                     \
        kiln_do(                                                                                                    \
            19, line, 1, OP, t, t, kiln_bits(s), KILN_REPEAT(mask, repeat), 1,                                      \
            KILN_OPERAND(d, p.dstBlkStride, p.dstRepStride), KILN_OPERAND(a, p.srcBlkStride, p.srcRepStride));      \
    }
KILN_SCALAR(Adds, KILN_ADD)
KILN_SCALAR(Muls, KILN_MUL)
KILN_SCALAR(Maxs, KILN_MAX)
KILN_SCALAR(Mins, KILN_MIN)
KILN_SCALAR(ShiftLeft, KILN_SHL)
KILN_SCALAR(ShiftRight, KILN_SHR)
#undef KILN_SCALAR

#define KILN_UNARY(NAME, OP)                                                                                        \
    template <class T> inline void NAME(const LocalTensor<T>& d, const LocalTensor<T>& a, int32_t n, KILN_LINE)     \
    {                                                                                                               \
        const uint32_t t = kiln_type<T>::value;                                                                     \
        kiln_do(19, line, 2, OP, t, t, 0, KILN_COUNT(n), 1, KILN_OPERAND(d, 1, 8), KILN_OPERAND(a, 1, 8));          \
    }                                                                                                               \
    template <class T>                                                                                              \
    inline void NAME(                                                                                               \
        const LocalTensor<T>& d, const LocalTensor<T>& a, uint64_t mask, uint8_t repeat,                            \
        const UnaryRepeatParams& p, KILN_LINE)                                                                      \
    {                                                                                                               \
        const uint32_t t = kiln_type<T>::value;                                                                     \
        kiln_do(                                                                                                    \
            19, line, 2, OP, t, t, 0, KILN_REPEAT(mask, repeat), 1,                                                 \
            KILN_OPERAND(d, p.dstBlkStride, p.dstRepStride), KILN_OPERAND(a, p.srcBlkStride, p.srcRepStride));      \
    }
KILN_UNARY(Abs, KILN_ABS)
KILN_UNARY(Sqrt, KILN_SQRT)
KILN_UNARY(Exp, KILN_EXP)
KILN_UNARY(Ln, KILN_LN)
KILN_UNARY(Not, KILN_NOT)
KILN_UNARY(Relu, KILN_RELU)
#undef KILN_UNARY

template <class D, class S>
inline void Cast(const LocalTensor<D>& d, const LocalTensor<S>& a, RoundMode round, uint32_t n, KILN_LINE)
{
    kiln_do(
        19, line, 3, kiln_round(round), kiln_type<D>::value, kiln_type<S>::value, 0, KILN_COUNT(n), 1,
        KILN_OPERAND(d, 1, 8), KILN_OPERAND(a, 1, 8));
}
template <class T>
inline void Duplicate(const LocalTensor<T>& d, typename kiln_same<T>::type s, int32_t n, KILN_LINE)
{
    const uint32_t t = kiln_type<T>::value;
    kiln_do(19, line, 4, 0, t, t, kiln_bits(s), KILN_COUNT(n), 0, KILN_OPERAND(d, 1, 8));
}
template <class T>
inline void Brcb(
    const LocalTensor<T>& d, const LocalTensor<T>& a, uint8_t repeat, const BrcbRepeatParams& p, KILN_LINE)
{
    const uint32_t t = kiln_type<T>::value;
    kiln_do(
        19, line, 5, 0, t, t, 0, KILN_REPEAT(8, repeat), 1, KILN_OPERAND(d, p.dstBlkStride, p.dstRepStride),
        KILN_OPERAND(a, 1, 1));
}
// One result a repeat; the stride of the results is in elements.
template <class T>
inline void WholeReduceSum(
    const LocalTensor<T>& d, const LocalTensor<T>& a, int32_t mask, int32_t repeat, int32_t dstRep, int32_t srcBlk,
    int32_t srcRep, KILN_LINE)
{
    const uint32_t t = kiln_type<T>::value;
    kiln_do(
        19, line, 6, 0, t, t, 0, KILN_REPEAT(mask, repeat), 1, KILN_OPERAND(d, 1, dstRep),
        KILN_OPERAND(a, srcBlk, srcRep));
}
template <class T>
inline void kiln_extreme(
    uint32_t which, const LocalTensor<T>& d, const LocalTensor<T>& a, int32_t mask, int32_t repeat, int32_t dstRep,
    int32_t srcBlk, int32_t srcRep, uint32_t line)
{
    const uint32_t t = kiln_type<T>::value;
    kiln_do(
        19, line, 6, which, t, t, 0, KILN_REPEAT(mask, repeat), 1, KILN_OPERAND(d, 1, dstRep),
        KILN_OPERAND(a, srcBlk, srcRep));
}
// Only values: positions are not in the subset.
template <class T>
inline void WholeReduceMax(
    const LocalTensor<T>& d, const LocalTensor<T>& a, int32_t mask, int32_t repeat, int32_t dstRep, int32_t srcBlk,
    int32_t srcRep, ReduceOrder order, KILN_LINE)
{
    kiln_extreme(order == ReduceOrder::ORDER_ONLY_VALUE ? 1 : 9, d, a, mask, repeat, dstRep, srcBlk, srcRep, line);
}
template <class T>
inline void WholeReduceMin(
    const LocalTensor<T>& d, const LocalTensor<T>& a, int32_t mask, int32_t repeat, int32_t dstRep, int32_t srcBlk,
    int32_t srcRep, ReduceOrder order, KILN_LINE)
{
    kiln_extreme(order == ReduceOrder::ORDER_ONLY_VALUE ? 2 : 9, d, a, mask, repeat, dstRep, srcBlk, srcRep, line);
}
#undef KILN_OPERAND
#undef KILN_COUNT
#undef KILN_REPEAT

#endif

} // namespace AscendC
